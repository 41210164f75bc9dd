"""etcd goes and comes back, as clients of the front see it: the log is served on, nothing that needs a number is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.integration.clock_rig import PODS, eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.sim_rig import STREAM, SimRig, pod

SPACE = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer) -> AsyncIterator[SimRig]:
    rig = SimRig(etcd, [PODS])
    try:
        yield await rig.start(["east", "west"])
    finally:
        await rig.close()


async def send(rig: SimRig, method: str, path: str, body: Any, kind: str = "application/json") -> tuple[int, Any, str]:
    """Status, decoded body and Retry-After of a write."""
    url = f"http://127.0.0.1:{rig.port}{path}"
    async with rig.http.request(method, url, json=body, headers={"Content-Type": kind}) as answer:
        return answer.status, await answer.json(), answer.headers.get("Retry-After", "")


async def test_the_log_is_served_on_and_writes_are_refused(rig: SimRig, etcd: EtcdServer) -> None:
    east = rig.clusters["east"]
    east.create(pod("a"))
    await rig.settled()
    shown = (await rig.get(f"{SPACE}/a")).body
    listed = await rig.get()
    async with rig.watch(**STREAM) as watched:
        await rig.streamed(watched)
        etcd.kill()
        east.create(pod("b"))  # what nobody can number nobody is told of
        await rig.clock.upkeep.look()
        native = east.get("pods", "default", "a")
        for method, path, body, kind in (
            ("PUT", f"{SPACE}/a", shown, "application/json"), ("PATCH", f"{SPACE}/a", {"metadata": {"labels": {"x": "y"}}}, MERGE),
            ("DELETE", f"{SPACE}/a", {}, "application/json"), ("POST", SPACE, pod("c"), "application/json"),
        ):  # fmt: skip
            code, told, after = await send(rig, method, path, body, kind)
            assert (code, told["reason"]) == (503, "ServiceUnavailable"), (method, told)
            assert int(after) > 0 and "etcd does not answer" in told["message"]
        assert east.get("pods", "default", "a") == native, "no write has reached the member"
        await eventually(lambda: not rig.of().certain, "its lease may have ended")
        for told in (await rig.get(), await rig.get(f"{SPACE}/a")):
            assert told.status == 503 and int(told.headers["Retry-After"]) > 0
        old = await rig.get(resourceVersion="0")
        assert (old.status, old.names, old.version) == (200, ["a"], listed.version)
        assert watched.names() == ["a"] and not watched.ended
        await etcd.start()
        await eventually(lambda: watched.names() == ["a", "b"], timeout=30)
        assert not watched.ended and len(watched.ends) == 1
        await rig.clock.upkeep.look()
        shown["metadata"]["labels"] = {"x": "y"}
        code, told, _ = await send(rig, "PUT", f"{SPACE}/a", shown)  # its version means what it meant before
        assert code == 200 and int(told["metadata"]["resourceVersion"]) > int(shown["metadata"]["resourceVersion"])
        await eventually(lambda: watched.names() == ["a", "b", "a"])
    assert (await rig.get()).names == ["a", "b"]
