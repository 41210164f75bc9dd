"""What is done to the fleet: a seeded, endless schedule of faults; each ends by itself, `heal` ends all."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from deploy.local.errors import FleetFailed
from deploy.local.fleet import Fleet
from services.common.etcd import Etcd, EtcdError
from services.common.etcd_admin import states

log = logging.getLogger(__name__)
Fault = Callable[[], Awaitable[None]]
LINKS = ("cut", "hang", "half-open", "slow", "reset")


class Chaos:
    """`run` is its task. `now` names the faults under way, `done` counts them by kind, `told` is the whole schedule."""

    def __init__(self, fleet: Fleet, seed: int, *, pace: float = 1.0) -> None:
        self.now: list[str] = []
        self.done: Counter[str] = Counter()
        self.told: list[str] = []
        self._fleet = fleet
        self._random = random.Random(seed)
        self._pace = pace
        self._busy: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin = 0.0
        services = fleet.services
        assert services is not None
        self._services = services
        self._members = list(fleet.members)
        self._faults: list[tuple[int, Fault]] = [
            (5, self._kill_aggregator), (3, self._pause_aggregator), (2, self._restart_aggregator),
            (4, self._kill_etcd_leader), (2, self._kill_etcd), (2, self._pause_etcd), (1, self._lose_etcd),
            (4, self._etcd_link), (5, self._member_link), (4, self._client_link),
            (2, self._kill_apiserver), (1, self._pause_apiserver), (3, self._compact), (2, self._kill_service),
        ]  # fmt: skip

    async def run(self) -> None:
        """Begin a fault every few seconds, two or three at once, until cancelled."""
        self._begin = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(self._random.uniform(1.0, 4.0) * self._pace)
            if len(self._tasks) >= 3:
                continue
            [(_, fault)] = self._random.choices(self._faults, [weight for weight, _ in self._faults])
            task = asyncio.create_task(self._quietly(fault), name="torture/fault")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def heal(self) -> None:
        """End every fault, and start all that is down. Returns when everything is ready."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._fleet.links.named.values():
            link.set("heal")
        processes = self._fleet.processes.values()
        for process in processes:
            process.resume()
        await asyncio.gather(*(process.start() for process in processes))
        await asyncio.gather(*(process.wait_ready(90) for process in processes))

    async def _quietly(self, fault: Fault) -> None:
        try:
            await fault()
        except (FleetFailed, EtcdError) as error:
            log.warning("a fault could not be carried out: %s", error)

    @contextmanager
    def _fault(self, kind: str, target: str) -> Iterator[bool]:
        """Note a fault on a target; False where another one is on it already. Without a `kind` it is only reserved."""
        if target in self._busy:
            yield False
            return
        self._busy.add(target)
        if not kind:
            try:
                yield True
            finally:
                self._busy.discard(target)
            return
        text = f"{kind} {target}"
        self.now.append(text)
        self.done[kind] += 1
        self.told.append(f"{asyncio.get_running_loop().time() - self._begin:.1f} {text}")
        try:
            yield True
        finally:
            self.now.remove(text)
            self._busy.discard(target)

    def _seconds(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    async def _down(self, kind: str, name: str, seconds: float) -> None:
        """kill -9 (or stop in order), then start again."""
        process = self._fleet.processes[name]
        with self._fault(kind, name) as free:
            if not free:
                return
            await (process.kill9() if kind == "kill" else process.stop())
            await asyncio.sleep(seconds)
            await process.start()
            await process.wait_ready(60)

    async def _freeze(self, name: str, seconds: float) -> None:
        process = self._fleet.processes[name]
        with self._fault("pause", name) as free:
            if free:
                process.pause()
                try:
                    await asyncio.sleep(seconds)
                finally:
                    process.resume()

    async def _spoil(self, pattern: str, low: float, high: float) -> None:
        name = self._random.choice([one.name for one in self._fleet.links.matching(pattern)])
        fault = self._random.choice(LINKS)
        seconds = self._seconds(low, high)
        link = self._fleet.links.named[name]
        with self._fault(fault, name) as free:
            if free:
                link.set(fault, latency=self._seconds(0.02, 0.4), bandwidth=self._random.choice([0, 200_000]))
                try:
                    await asyncio.sleep(0 if fault == "reset" else seconds)
                finally:
                    link.set("heal")

    # Aggregators.

    async def _kill_aggregator(self) -> None:
        await self._down("kill", self._random.choice(self._services.aggregators), self._seconds(0, 4))

    async def _restart_aggregator(self) -> None:
        await self._down("stop", self._random.choice(self._services.aggregators), self._seconds(0, 2))

    async def _pause_aggregator(self) -> None:
        await self._freeze(self._random.choice(self._services.aggregators), self._seconds(1, 9))

    # etcd.

    async def _kill_etcd_leader(self) -> None:
        names, ports = zip(*self._services.etcd_ports.items(), strict=True)
        client = Etcd.connect([f"127.0.0.1:{port}" for port in ports])
        try:
            leader = next((at for at, one in enumerate(await states(client)) if one.leader), 0)
        finally:
            await client.close()
        await self._etcd_down("kill", str(names[leader]))

    async def _kill_etcd(self) -> None:
        await self._etcd_down("kill", self._random.choice(self._services.etcds))

    async def _etcd_down(self, kind: str, name: str) -> None:
        # One at a time: two of three are no etcd at all, which _lose_etcd does on purpose.
        with self._fault("", "etcd") as free:
            if free:
                await self._down(kind, name, self._seconds(0.5, 5))

    async def _pause_etcd(self) -> None:
        with self._fault("", "etcd") as free:
            if free:
                await self._freeze(self._random.choice(self._services.etcds), self._seconds(1, 8))

    async def _lose_etcd(self) -> None:
        with self._fault("lose", "etcd") as free:
            if free:
                await asyncio.gather(*(self._down("kill", name, self._seconds(1, 6)) for name in self._services.etcds))

    async def _etcd_link(self) -> None:
        await self._spoil("aggregator*->etcd*", 2, 10)

    # Members and clients.

    async def _member_link(self) -> None:
        await self._spoil("services->*", 2, 12)

    async def _client_link(self) -> None:
        await self._spoil("client->*", 1, 8)

    async def _kill_apiserver(self) -> None:
        await self._down("kill", f"{self._random.choice(self._members)}-apiserver", self._seconds(0, 4))

    async def _pause_apiserver(self) -> None:
        await self._freeze(f"{self._random.choice(self._members)}-apiserver", self._seconds(2, 10))

    async def _compact(self) -> None:
        member = self._random.choice(self._members)
        with self._fault("compact", f"{member}-etcd") as free:
            if not free:
                return
            client = Etcd.connect([f"127.0.0.1:{self._fleet.processes[f'{member}-etcd'].ports['client']}"])
            try:
                revision = (await client.range(b"/registry/", limit=1)).revision
                await client.compact(revision - self._random.randrange(20))
            finally:
                await client.close()

    async def _kill_service(self) -> None:
        await self._down("kill", self._random.choice(["discovery", "scheduler", "reconciler"]), self._seconds(0, 3))
