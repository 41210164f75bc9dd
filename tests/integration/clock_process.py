"""A replica in a process of its own, for tests that kill or pause it: `ENDPOINT VERSION ELSEWHERE NAME=UID@PORT…`.

It prints one JSON object a line: {"at": head} when it serves, every entry of the log behind VERSION (0: behind the
head then), {"leads": term} at each change, {"snapshot": version} for each line read from standard input. ELSEWHERE
"1": its peers take it for a process of another machine, so that only the end of its lease tells them of its death.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress

from services.aggregator.clock.clock import Clock, ResourceClock
from services.common.errors import StatusError
from services.common.etcd import Etcd
from services.common.fleet import Member
from services.common.kube.client import KubeClient
from tests.integration.clock_rig import FLEET, PODS, FakeFleet


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def fleet_of(places: list[str]) -> FakeFleet:
    """Members as the command line names them."""
    fleet = FakeFleet()
    for place in places:
        name, _, rest = place.partition("=")
        uid, _, port = rest.partition("@")
        member = Member(name)
        member.client = await KubeClient.connect(kubeconfig(int(port)), name=name)
        member.uid, member.reachable = uid, True
        fleet.members[name] = member
    fleet.synced.set()
    return fleet


def kubeconfig(port: int) -> dict[str, object]:
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    }  # fmt: skip


async def tell(pods: ResourceClock, version: int) -> None:
    """Print the log."""
    cursor = pods.cursor(version or pods.head)
    while True:
        for one in cursor.take():
            say(fleet=one.fleet, type=one.type, name=one.name, cluster=one.cluster, uid=one.uid, version=one.version)
        await cursor.wait()


async def answer(pods: ResourceClock) -> None:
    """Print a linearizable snapshot's version for each line that is read."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        with suppress(StatusError):
            say(snapshot=(await pods.snapshot()).version)


async def leads(pods: ResourceClock) -> None:
    """Print the term whenever it changes."""
    term = -1
    while True:
        if pods.term != term:
            term = pods.term
            say(leads=term)
        await asyncio.sleep(0.005)


async def main(endpoint: str, version: int, elsewhere: bool, places: list[str]) -> None:
    fleet = await fleet_of(places)
    host = next(iter(fleet.members.values())).client
    clock = Clock(
        etcd=Etcd.connect([endpoint]), prefix="/reclock/v1/", fleet_id=FLEET, window_seconds=900,
        window_revisions=2_000_000, fleet=fleet, host=host,
    )  # type: ignore[arg-type] # fmt: skip
    if elsewhere:
        clock.context.me = f"elsewhere/{clock.context.me}"
    clock.apply([PODS])
    pods = clock.get("", "pods")
    assert pods is not None
    async with asyncio.TaskGroup() as group:
        group.create_task(clock.run())
        await pods.loaded.wait()
        say(at=pods.head)
        for job in (tell(pods, version), answer(pods), leads(pods)):
            group.create_task(job)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4:]))
