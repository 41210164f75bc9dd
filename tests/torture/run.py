"""One torture run: fleet, clients, faults, the end, the check."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.errors import FleetFailed
from deploy.local.fleet import Fleet
from services.common.etcd import Etcd, EtcdError
from tests.proof.checker import check
from tests.proof.history import Breach, History, Key, Run
from tests.proof.history import Counter as SharedCounter
from tests.torture.chaos import Chaos
from tests.torture.informer import Informer
from tests.torture.recorder import Recorder
from tests.torture.report import Summary, progress
from tests.torture.wire import CLUSTER, FAILURES, NAMESPACE, PATH, VALUE, Refused, Server, ledger
from tests.torture.writers import GROUPS, CounterClient, FrontWriter, Load, MemberWriter

MEMBERS = ("east", "west", "north")
COUNTERS = 3
SETTLE = 120.0
AGGREGATION = {
    "apiVersion": "reclock.dev/v1alpha1", "kind": "APIAggregation", "metadata": {"name": "configmaps"},
    "spec": {"group": "", "version": "v1", "resource": "configmaps", "create": "Schedule"},
}  # fmt: skip
Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """What is asked of a run."""

    seed: int
    minutes: float
    watchers: int = 50
    writes: float = 120.0
    """A second, all writers together."""
    faults: bool = True
    aggregators: int = 2
    etcd_members: int = 3


class Torture:
    """Owns everything that runs; `run` returns its summary."""

    def __init__(self, fleet: Fleet, settings: Settings, say: Say) -> None:
        assert fleet.services is not None
        self.fleet, self.settings, self.say = fleet, settings, say
        self.load = Load()
        services = fleet.services
        self._fronts = [
            Server(name, services.front_access(aggregator=name)) for name in services.aggregators
        ]
        self._direct = {name: Server(name, one.access("torture")) for name, one in fleet.members.items()}
        self._host = Server("host", fleet.host.access("torture"))
        self.recorders = [Recorder(name, server) for name, server in self._direct.items()]
        self.informers: list[Informer] = [self._informer(number) for number in range(settings.watchers)]
        rate = settings.writes
        self.writers = [
            FrontWriter(f"front-{number}", self._fronts, self.load, rate * 0.45 / 5, settings.seed + 500 + number)
            for number in range(5)
        ]
        self.direct = [
            MemberWriter(name, server, self.load, rate * 0.6 / len(self._direct), settings.seed + 700 + number)
            for number, (name, server) in enumerate(self._direct.items())
        ]
        self.counters = [
            CounterClient(
                f"counting-{number}", f"counter-{number % COUNTERS}", self._fronts, self.load, 1.5,
                settings.seed + 900 + number,
            )
            for number in range(COUNTERS * 3)
        ]  # fmt: skip
        self.chaos = Chaos(fleet, settings.seed)
        self.failovers = -1
        self._tasks: list[asyncio.Task[None]] = []

    def _informer(self, number: int) -> Informer:
        seed = self.settings.seed + number
        group = GROUPS[number % len(GROUPS)] if number % 5 == 4 else ""
        metadata = number % 3 == 2
        kind = f"{'stream' if number % 2 else 'list'}-{'metadata' if metadata else 'whole'}-{group or 'all'}-{number}"
        return Informer(kind, self._fronts, seed, group=group, streaming=bool(number % 2), metadata=metadata)

    async def run(self) -> Summary:
        """Load, faults, peace, check."""
        await self._prepare()
        begin = time.monotonic()
        settings = self.settings
        load = [self._spawn(one.run()) for one in self.writers]
        load += [self._spawn(one.run()) for one in self.direct]
        load += [self._spawn(one.run()) for one in self.counters]
        watching = [self._spawn(one.run()) for one in self.informers]
        self._spawn(self._count_failovers())
        shown = self._spawn(progress(lambda: self._line(begin)))
        faults = [self._spawn(self.chaos.run())] if settings.faults else []
        try:
            await self._endure(begin + settings.minutes * 60, load + watching)
        finally:
            await _end(faults + load)
        summary = Summary(settings.seed, (time.monotonic() - begin) / 60)
        peace = time.monotonic()
        await self.chaos.heal()
        final = await self._settle(peace)
        summary.settled = time.monotonic() - peace
        await _end([*watching, shown, *self._tasks])
        self._fill(summary)
        began = time.monotonic()
        summary.breaches = check(await self._evidence(final))
        self.say(f"checked {summary.records} records in {time.monotonic() - began:.1f} s")
        return summary

    async def close(self) -> None:
        """End what still runs."""
        await _end(self._tasks)
        for server in (*self._fronts, *self._direct.values(), self._host):
            await server.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def _endure(self, until: float, tasks: list[asyncio.Task[None]]) -> None:
        """Wait; a client that ends is a bug of this program."""
        done, _ = await asyncio.wait(
            tasks, timeout=max(until - time.monotonic(), 0), return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()

    # Before.

    async def _prepare(self) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        for server in (self._host, *self._direct.values()):
            await _insist(lambda server=server: server.request("POST", "/api/v1/namespaces", namespace))  # type: ignore[misc]
        path = "/apis/reclock.dev/v1alpha1/apiaggregations"
        await _insist(lambda: self._host.request("POST", path, AGGREGATION))
        for recorder in self.recorders:
            self._spawn(recorder.run())
            await recorder.synced.wait()
        for front in self._fronts:
            await _until_merged(front)
        for number in range(COUNTERS):
            obj = ledger(f"counter-{number}", "begin", "a", **{VALUE: "0"})
            await _insist(lambda obj=obj: self._fronts[0].request("POST", PATH, obj))  # type: ignore[misc]
        for front in self._fronts:
            await _insist(lambda front=front: front.request("GET", f"{PATH}/counter-0"))  # type: ignore[misc]
        self.say(f"{len(self.informers)} watchers and informers, {self.settings.writes:.0f} writes/s wanted")

    async def _count_failovers(self) -> None:
        assert self.fleet.services is not None
        etcd = Etcd.connect([f"127.0.0.1:{port}" for port in self.fleet.services.etcd_ports.values()], timeout=2)
        term = 0
        try:
            while True:
                with contextlib.suppress(EtcdError):  # away now: asked again in a moment
                    held = await etcd.get(b"/reclock/v1/leader//configmaps")
                    if held is not None and held.create_revision != term:
                        term = held.create_revision
                        self.failovers += 1
                await asyncio.sleep(0.3)
        finally:
            await etcd.close()

    def _line(self, begin: float) -> str:
        elapsed = time.monotonic() - begin
        events = sum(one.events for one in self.informers)
        done = self.chaos.done
        return (
            f"{elapsed:5.0f} s  {events} events  {self.load.writes} writes ({self.load.writes / max(elapsed, 1):.0f}/s)"
            f"  {sum(done.values())} faults ({done['kill']} kills)  {max(self.failovers, 0)} failovers"
            f"  {sum(one.relists for one in self.informers)} relists  {len(self.informers)} histories"
            f"  now: {', '.join(self.chaos.now) or '-'}"
        )

    # After.

    async def _final(self) -> dict[str, dict[Key, tuple[str, str]]]:
        """Scope -> key -> (uid, stamp), as the members have it."""
        whole: dict[str, dict[Key, tuple[str, str]]] = {"all": {}, **{f"group={one}": {} for one in GROUPS}}
        for recorder in self.recorders:
            for key, (state, labels) in (await recorder.settled()).items():
                whole["all"][key] = state.uid, state.stamp
                scope = f"group={labels.get('group', '')}"
                if scope in whole:
                    whole[scope][key] = state.uid, state.stamp
        return whole

    async def _settle(self, begin: float) -> dict[str, dict[Key, tuple[str, str]]]:
        """Wait until every informer holds what the members have, or long enough."""
        final = await self._final()
        while time.monotonic() - begin < SETTLE:
            behind = [
                one for one in self.informers
                if {key: (seen.uid, seen.stamp) for key, seen in one.held.items()} != final[one.history.scope]
            ]  # fmt: skip
            if not behind:
                return final
            await asyncio.sleep(0.5)
            # A create whose answer was lost may be carried out late.
            final = await self._final()
        self.say(f"{len(behind)} informers are behind after {SETTLE:.0f} s: {behind[0].history.client}, …")
        return final

    def _histories(self) -> list[History]:
        return [*(one.history for one in self.informers), *(one.history for one in self.writers)]

    def _fill(self, summary: Summary) -> None:
        summary.watchers = len(self.informers)
        summary.clients = len(self.writers) + len(self.direct) + len(self.counters)
        summary.events = sum(one.events for one in self.informers)
        summary.writes, summary.unknown = self.load.writes, self.load.unknown
        summary.conflicts = sum(one.conflicts for one in self.counters)
        summary.failovers = max(self.failovers, 0)
        summary.resumes = sum(one.resumes for one in self.informers)
        summary.relists = sum(one.relists for one in self.informers)
        summary.faults = self.chaos.done
        summary.histories = len(self._histories()) + len(self.counters)
        summary.records = sum(len(one.records) for one in self._histories())

    async def _evidence(self, final: dict[str, dict[Key, tuple[str, str]]]) -> Run:
        counters = []
        for number in range(COUNTERS):
            name = f"counter-{number}"
            mine = [one for one in self.counters if one.counter == name]
            obj = await _insist(lambda name=name: self._fronts[0].request("GET", f"{PATH}/{name}"))  # type: ignore[misc]
            counters.append(
                SharedCounter(
                    (NAMESPACE, name), 0, int(obj["metadata"]["annotations"][VALUE]),
                    {one.name: tuple(one.won) for one in mine}, sum(one.unknown for one in mine),
                )
            )  # fmt: skip
        members = [one.record for one in self.recorders]
        for record in members:
            record.disturbed = record.disturbed or self.settings.faults
        return Run(self._histories(), members, final, counters, gaps=self.settings.faults)


async def _until_merged(front: Server, timeout: float = 60) -> None:
    """Until then the type is the host's own: what is made there is not the fleet's."""
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(Refused, *FAILURES):
            items = (await front.request("GET", PATH))["items"]
            if any((one["metadata"].get("annotations") or {}).get(CLUSTER) for one in items):
                return
        if time.monotonic() > deadline:
            raise FleetFailed(f"{front.name} does not aggregate configmaps after {timeout:.0f} s")
        await asyncio.sleep(0.3)


async def _insist(call: Callable[[], Coroutine[Any, Any, Any]], timeout: float = 60) -> Any:
    """Call until it succeeds; an object that is there already is success."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return await call()
        except Refused as error:
            if error.code == 409:
                return None
            last: Exception = error
        except FAILURES as error:
            last = error
        if time.monotonic() > deadline:
            raise last
        await asyncio.sleep(0.5)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def torture(directory: Path, settings: Settings, say: Say) -> Summary:
    """Start a fleet, run, and stop everything however it ends."""

    def tell(text: str) -> None:
        say(f"fleet: {text}")

    async with Fleet.start(
        directory, members=list(MEMBERS), services=True, aggregators=settings.aggregators,
        etcd_members=settings.etcd_members, faults=True, say=tell,
    ) as fleet:  # fmt: skip
        one = Torture(fleet, settings, say)
        try:
            summary = await one.run()
            if summary.breaches:
                keep(fleet, directory, one, summary.breaches)
            return summary
        except Exception:
            keep(fleet, directory, one, [])
            raise
        finally:
            await one.close()


def keep(fleet: Fleet, directory: Path, one: Torture, breaches: Sequence[Breach]) -> None:
    """Copy the logs, the schedule and the breaches to where they outlive the fleet."""
    target = directory.with_name(f"{directory.name}-failed")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(fleet.layout.logs, target)
    (target / "schedule.txt").write_text("\n".join(one.chaos.told) + "\n")
    (target / "breaches.txt").write_text("\n".join(map(str, breaches)) + "\n")
    one.say(f"logs and schedule are kept in {target}")

