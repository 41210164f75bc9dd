"""What can happen in a world: one method per action, `do_<name>(a, b)`, of two numbers that say which and how."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

from aetcd.rpc import rpc_pb2

from services.aggregator.clock.position import decode_position, split_incarnation
from services.common.etcd import op_delete, op_put
from tests.proof.virtual.link import Fault
from tests.proof.virtual.members import GROUPS, Refused, Site
from tests.proof.virtual.process import PREFIX, Replica

if TYPE_CHECKING:
    from tests.proof.virtual.blur import Blur
    from tests.proof.virtual.clients import Informer, Looker, Writer
    from tests.proof.virtual.etcd import EtcdStore
    from tests.proof.virtual.loop import VirtualLoop

LEADER = f"{PREFIX}leader//pods".encode()
FAULTS: tuple[Fault, ...] = ("unsent", "lost", "late", "silent")
STAGES = ("sent", "arrived", "done", "answered")
WEIGHTS = {
    "put": 14, "puts": 6, "delete": 4, "expire": 4, "tick": 4, "drop": 3, "compact": 2, "restart": 3, "back": 3, "slow": 1,
    "look": 8, "write": 8, "count": 5, "freeze": 2, "move": 4, "backup": 2, "restore": 3, "reincarnate": 1, "down": 3,
    "cut": 3, "type": 1, "leave": 2, "join": 3, "fault": 4, "crash": 5, "kill": 2, "stop": 1, "start": 5, "steal": 2,
    "lease": 2, "lag": 1, "etcd": 1, "detach": 1, "forget": 1, "pause": 2,
}  # fmt: skip
"""How often each happens in a random history."""
NEEDS = {
    "restore": "restore", "backup": "restore", "reincarnate": "restore", "down": "gaps", "cut": "gaps", "type": "membership",
    "leave": "membership", "join": "membership", "fault": "etcd", "lag": "etcd", "etcd": "etcd", "detach": "etcd",
    "steal": "etcd", "lease": "etcd", "forget": "etcd", "crash": "kills", "kill": "kills", "stop": "kills", "slow": "slow",
    "freeze": "slow",
}  # fmt: skip
"""Which feature a world needs for it."""


class Actions:
    """Mixed into World, which has the state."""

    features: frozenset[str]
    random: random.Random
    loop: VirtualLoop
    store: EtcdStore
    sites: list[Site]
    engaged: list[Site]
    replicas: list[Replica]
    informers: list[Informer]
    looker: Looker
    writers: list[Writer]
    busy: dict[str, asyncio.Task[Any]]
    garbage: list[asyncio.Task[Any]]
    marks: list[tuple[float, int]]
    blur: Blur
    names: str
    healed = False
    """Is it over? What was armed to happen does not happen any more."""

    def allowed(self, name: str) -> bool:
        need = NEEDS.get(name)
        return need is None or need in self.features

    # Members.

    def _site(self, a: int) -> Site:
        return self.sites[a % len(self.sites)]

    def _name(self, site: Site, b: int) -> str:
        name = self.names[b % len(self.names)]
        return f"{name}0" if "clash" in self.features else f"{name}0" if site is self.sites[0] else f"{name}0-{site.name}"

    async def do_put(self, a: int, b: int) -> None:
        """A pod is made or changed on a member."""
        site = self._site(a)
        site.put(self._name(site, b), GROUPS[b // 7 % 2])

    async def do_puts(self, a: int, b: int) -> None:
        """Several at once."""
        site = self._site(a)
        for at in range(2 + b % 5):
            site.put(self._name(site, b + at), GROUPS[(a + at) % 2])

    async def do_delete(self, a: int, b: int) -> None:
        """A pod goes."""
        site = self._site(a)
        site.delete(self._name(site, b))

    async def do_expire(self, a: int, b: int) -> None:
        """Several go at one version."""
        site = self._site(a)
        live = sorted(name for _, name in site.live if not name.startswith(("count", "w")))
        site.expire(live[: 2 + b % 3])

    async def do_tick(self, a: int, b: int) -> None:
        """Something else happens on a member."""
        self._site(a).tick(b % 3)

    async def do_drop(self, a: int, b: int) -> None:
        """Connections of a member break in the middle."""
        for path in self._site(a).paths:
            path.break_streams()

    async def do_compact(self, a: int, b: int) -> None:
        """A member forgets its history."""
        self._site(a).compact()

    async def do_restart(self, a: int, b: int) -> None:
        """Its API server restarts."""
        self._site(a).restart()

    async def do_slow(self, a: int, b: int) -> None:
        """It takes its time, or not any more."""
        site = self._site(a)
        site.slow = (0.05, 1.0, 7.0)[b % 3] if not site.slow else 0.0

    async def do_backup(self, a: int, b: int) -> None:
        """A backup is made of it (not of the first: it holds what is counted)."""
        self._restorable(a).backup()

    async def do_restore(self, a: int, b: int) -> None:
        """It is set back to a backup."""
        site = self._restorable(a)
        if site.backups:
            self._remember(site)
            site.restore(site.backups[b % len(site.backups)])
            self.blur.begin(site)

    async def do_reincarnate(self, a: int, b: int) -> None:
        """Another cluster takes its place."""
        site = self._restorable(a)
        self._remember(site)
        site.reincarnate()
        self.blur.begin(site)
        await self._tell(site, uid=site.cluster.uid)

    def _restorable(self, a: int) -> Site:
        return self.sites[1 + a % (len(self.sites) - 1)]

    def _remember(self, site: Site) -> None:
        """The life that the newest position in etcd is of."""
        kv = self.store._now(f"{PREFIX}positions//pods/{site.name}".encode())
        site.before = split_incarnation(decode_position(kv.value).incarnation) if kv is not None else ("", -1)

    async def do_down(self, a: int, b: int) -> None:
        """Nobody reaches a member; discovery may say so."""
        site = self._site(a)
        site.down = not site.down
        for path in site.paths:
            path.break_streams()
        if not site.down or b % 2:
            await self._tell(site, reachable=not site.down)

    async def do_cut(self, a: int, b: int) -> None:
        """One replica alone does not reach a member."""
        path = self.replicas[b % len(self.replicas)].paths.get(self._site(a).name)
        if path is not None:
            path.cut = not path.cut
            if path.cut:
                path.break_streams()

    async def do_type(self, a: int, b: int) -> None:
        """A member loses the type with its pods, or has it again."""
        site = self.sites[1 + a % (len(self.sites) - 1)]
        site.record.returns = True
        if not site.lacks:
            site.expire([name for _, name in site.live])
        site.lacks = not site.lacks
        site.restart()

    async def do_leave(self, a: int, b: int) -> None:
        """A member leaves the fleet."""
        site = self.sites[1 + a % (len(self.sites) - 1)]
        if site in self.engaged:
            site.record.returns = True
            self.engaged.remove(site)
            for one in self.replicas:
                if one.up:
                    await one.fleet.disengage(site.name)

    async def do_join(self, a: int, b: int) -> None:
        """It comes back."""
        for site in self.sites:
            if site not in self.engaged:
                self.engaged.append(site)
                for one in self.replicas:
                    if one.up:
                        await one.fleet.engage(one.member(site))
                return

    async def do_back(self, a: int, b: int) -> None:
        """What was broken is whole again."""
        for site in self.sites:
            site.slow = 0.0
            if site.down:
                site.down = False
            await self._tell(site, reachable=True)
            for path in site.paths:
                path.cut = False

    async def _tell(self, site: Site, **changes: Any) -> None:
        for one in self.replicas:
            if one.up and site.name in one.fleet.members:
                await one.fleet.told(site.name, **changes)

    # etcd.

    async def do_fault(self, a: int, b: int) -> None:
        """Commits of a replica go wrong."""
        self.replicas[a % len(self.replicas)].link.faults = [FAULTS[(b + at) % 4] for at in range(1 + b // 4 % 2)]

    async def do_steal(self, a: int, b: int) -> None:
        """Somebody takes the leader key away, and may hold it for a moment."""
        self.store.delete(op_delete(LEADER).request_delete_range)
        if b % 2:
            lease = self.store.grant(rpc_pb2.LeaseGrantRequest(TTL=2)).ID
            self.store.put(op_put(LEADER, b"somebody else", lease).request_put)

    async def do_lease(self, a: int, b: int) -> None:
        """A lease ends before its time."""
        leases = sorted(self.store.leases)
        if leases:
            self.store.revoke(rpc_pb2.LeaseRevokeRequest(ID=leases[a % len(leases)]))

    async def do_lag(self, a: int, b: int) -> None:
        """A replica's watch of etcd is slow."""
        link = self.replicas[a % len(self.replicas)].link
        link.watch_delay = 0.0 if link.watch_delay else (0.05, 0.5, 5.0)[b % 3]

    async def do_detach(self, a: int, b: int) -> None:
        """A replica does not reach etcd for a while."""
        link = self.replicas[a % len(self.replicas)].link
        link.cut = True
        self.loop.call_later((0.5, 1.5, 4.0, 12.0)[b % 4], setattr, link, "cut", False)

    async def do_etcd(self, a: int, b: int) -> None:
        """etcd is away for a while."""
        if self.store.up:
            self.store.stop()
            self.loop.call_later((0.2, 1.0, 3.0, 8.0)[b % 4], self.store.start)

    async def do_forget(self, a: int, b: int) -> None:
        """Somebody compacts etcd, not younger than what clients were promised."""
        old = [revision for at, revision in self.marks if at < self.loop.now - 30]
        if old and old[-1] > self.store.compacted:
            self.store.compact(rpc_pb2.CompactionRequest(revision=old[-1]))

    # Replicas.

    async def do_crash(self, a: int, b: int) -> None:
        """A replica is killed in the middle of its next commit: at a stage of it, some awaits later."""
        replica, stage, turns = self.replicas[a % len(self.replicas)], STAGES[b % 4], b // 4 % 12
        link = replica.link

        def told(now: str) -> None:
            if now == stage:
                link.on_txn = lambda stage: None
                self.loop.after_turns(turns, lambda: self._kill(replica) if replica.link is link else None)

        link.on_txn = told

    def _kill(self, replica: Replica) -> None:
        if replica.up and not self.healed:
            self.garbage.append(replica.kill())

    async def do_kill(self, a: int, b: int) -> None:
        """A replica is killed; its lease runs out."""
        self._kill(self.replicas[a % len(self.replicas)])

    async def do_stop(self, a: int, b: int) -> None:
        """A replica stops in order."""
        replica = self.replicas[a % len(self.replicas)]
        if replica.up:
            self.garbage.append(replica.stop())

    async def do_start(self, a: int, b: int) -> None:
        """Those that are away start again."""
        for replica in self.replicas:
            if not replica.up:
                replica.start(self.engaged)

    # Clients.

    def _once(self, name: str, work: Any) -> None:
        """In the background; one at a time of each."""
        task = self.busy.get(name)
        if task is None or task.done():
            self.busy[name] = asyncio.create_task(work())

    async def do_look(self, a: int, b: int) -> None:
        """Somebody reads aside."""
        site = self._site(a)
        self._once("look", lambda: self.looker.once(self._name(site, b), b % 6))

    async def do_write(self, a: int, b: int) -> None:
        """Somebody writes through a replica, and reads it."""
        at = a % len(self.writers)
        self._once(f"write {at}", lambda: self.writers[at].once(f"w{at}-{b % 3}", b // 3 % 4))

    async def do_count(self, a: int, b: int) -> None:
        """Both count at once."""
        for at, writer in enumerate(self.writers):
            self._once(f"count {at}", lambda writer=writer: writer.count("count"))

    async def do_freeze(self, a: int, b: int) -> None:
        """A client stops reading, or goes on."""
        informer = self.informers[a % len(self.informers)]
        informer.frozen = not informer.frozen

    async def do_move(self, a: int, b: int) -> None:
        """A client's connection breaks: it goes on at any replica."""
        self.informers[a % len(self.informers)].disconnect()

    async def do_pause(self, a: int, b: int) -> None:
        """Time passes."""
        await asyncio.sleep((1.0, 5.0, 20.0)[b % 3])

    # The end of all that.

    async def heal(self) -> None:
        """Everything works again."""
        self.healed = True
        if not self.store.up:
            self.store.start()
        await self.do_start(0, 0)
        for site in self.sites:
            if site.lacks:
                await self.do_type(self.sites.index(site) - 1, 0)
        for _ in self.sites:
            await self.do_join(0, 0)
        await self.do_back(0, 0)
        for replica in self.replicas:
            link = replica.link
            link.cut, link.faults, link.watch_delay, link.answer_delay = False, [], 0.0, 0.0
            link.on_txn = lambda stage: None
        for informer in self.informers:
            informer.frozen = False
        with contextlib.suppress(Refused):
            for site in self.sites:
                site.tick(1)
