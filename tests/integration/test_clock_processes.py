"""Replicas in processes of their own: the sequencer is killed or paused in the middle of commits, and a client that
moves to another replica has everything once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.integration.clock_member import FakeMember
from tests.integration.clock_rig import eventually
from tests.integration.etcd_server import EtcdServer

Entry = dict[str, Any]


class Replica:
    """One process; see clock_process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.entries: list[Entry] = []
        self.at = self.term = self.snapshot = 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            said = json.loads(line)
            self.at = said.get("at", self.at)
            self.term = said.get("leads", self.term)
            self.snapshot = said.get("snapshot", self.snapshot)
            if "fleet" in said:
                self.entries.append(said)

    async def ask(self) -> int:
        """A linearizable snapshot's version."""
        assert self.process.stdin is not None
        before = self.snapshot
        self.process.stdin.write(b"\n")
        await eventually(lambda: self.snapshot != before, "a snapshot", 30)
        return self.snapshot

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reader


class Site:
    """An etcd, two members, and the replicas that were started."""

    def __init__(self, etcd: EtcdServer) -> None:
        self.etcd = etcd
        self.members: list[FakeMember] = []
        self.replicas: list[Replica] = []
        self.count = 0

    async def open(self) -> None:
        self.members = [FakeMember("east"), FakeMember("west")]
        for one in self.members:
            await one.start()

    async def replica(self, version: int = 0, *, elsewhere: bool = False) -> Replica:
        """Start one and wait until it serves."""
        places = [f"{one.name}={one.uid}@{one.port}" for one in self.members]
        command = ["-m", "tests.integration.clock_process", self.etcd.endpoint, str(version), str(int(elsewhere))]
        one = Replica(await asyncio.create_subprocess_exec(
            sys.executable, *command, *places, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        ))  # fmt: skip
        self.replicas.append(one)
        await eventually(lambda: one.at, "a replica serves", 60)
        return one

    async def pair(self, *, elsewhere: bool = False) -> tuple[Replica, Replica]:
        """A sequencer and a follower."""
        first = await self.replica(elsewhere=elsewhere)
        await eventually(lambda: first.term, "it leads", 30)
        return first, await self.replica(elsewhere=elsewhere)

    def change(self, times: int) -> None:
        """Events on both members."""
        for _ in range(times):
            self.count += 1
            member = self.members[self.count % 2]
            name = f"{member.name}{self.count % 5}"
            if self.count % 4 == 0 and ("default", name) in member.objects:
                member.delete(name)
            else:
                member.put(name, v=str(self.count))

    def want(self) -> dict[str, tuple[str, int]]:
        return {
            one.name: (one.uid, one.version) for member in self.members for one in member.objects.values()
        }

    async def close(self) -> None:
        for replica in self.replicas:
            await replica.end()
        for one in self.members:
            await one.close()


@pytest_asyncio.fixture
async def site(etcd: EtcdServer) -> AsyncIterator[Site]:
    one = Site(etcd)
    await one.open()
    try:
        yield one
    finally:
        await one.close()


def state(entries: list[Entry]) -> dict[str, tuple[str, int]]:
    """What a client holds after these; I1: it is told what fits what it has."""
    out: dict[str, tuple[str, int]] = {}
    last = 0
    for one in entries:
        assert one["fleet"] > last, "I1: versions grow"
        last = one["fleet"]
        known = out.get(one["name"])
        if one["type"] == "ADDED":
            assert known is None, one
        else:
            assert known is not None and known[0] == one["uid"], one
        if one["type"] == "DELETED":
            del out[one["name"]]
        else:
            out[one["name"]] = one["uid"], one["version"]
    return out


async def events(site: Site, stop: asyncio.Event) -> None:
    while not stop.is_set():
        site.change(1)
        await asyncio.sleep(0.002)


async def whole(site: Site, replica: Replica) -> None:
    """Wait until the replica's client has what the members have."""
    await eventually(lambda: state(replica.entries) == site.want(), "I4", 30)


async def test_a_sequencer_killed_in_the_middle_of_commits(site: Site) -> None:
    first, second = await site.pair()
    stop = asyncio.Event()
    load = asyncio.create_task(events(site, stop))
    await eventually(lambda: len(first.entries) > 100 and len(second.entries) > 50)
    first.process.send_signal(signal.SIGKILL)
    await first.end()
    await eventually(lambda: second.term, "the other one leads")
    there = len(second.entries)
    await eventually(lambda: len(second.entries) > there + 100, "it commits")
    stop.set()
    await load
    await whole(site, second)
    # Whatever the dead one told, the other one told too, under the same numbers.
    assert first.entries == second.entries[: len(first.entries)]
    # A third one, begun at a version of the dead one's, has just the rest.
    middle = len(first.entries) // 2
    third = await site.replica(first.entries[middle]["fleet"])
    rest = second.entries[middle + 1 :]
    await eventually(lambda: len(third.entries) >= len(rest))
    assert third.entries == rest, "no 410, nothing twice, nothing missing"


async def test_a_sequencer_paused_in_the_middle_of_commits_writes_nothing_more(site: Site) -> None:
    first, second = await site.pair(elsewhere=True)
    stop = asyncio.Event()
    load = asyncio.create_task(events(site, stop))
    await eventually(lambda: len(first.entries) > 100)
    first.process.send_signal(signal.SIGSTOP)
    await eventually(lambda: second.term, "its lease ends, the other one leads", 30)
    there = len(second.entries)
    await eventually(lambda: len(second.entries) > there + 100, "it commits")
    newest = second.entries[-1]["fleet"]
    first.process.send_signal(signal.SIGCONT)
    assert await first.ask() >= newest, "I6: what it answers is not older than what another replica told before"
    stop.set()
    await load
    await whole(site, second)
    await whole(site, first)
    assert first.entries == second.entries
    assert not first.term and second.term
