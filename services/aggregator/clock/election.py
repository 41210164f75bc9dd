"""The lease of this process, and how it takes the leader key of a resource.

The key's create_revision is the term: every transaction is guarded by it, so a sequencer that lost the key
cannot write, however late its transaction arrives. Taking the key over by force is therefore always safe; it is
done only where the holder is known to be dead, so that a restart after kill -9 does not wait for its lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from services.aggregator.clock.store import Deposed, Holder, StorageChanged, Store
from services.common.etcd import EtcdError, LeaseGone, compare, op_delete

log = logging.getLogger(__name__)

TTL = 2
"""Seconds that the leader key outlives a process that cannot say so: the least that etcd grants by default."""
RENEWALS = 4
"""Times per TTL that the lease is renewed: three may be lost."""
MARGIN = 0.2
"""Seconds before the lease's end from which on we are not certain of it: clocks run at almost the same rate."""
POLL = 0.5
"""Seconds between looks at whether the holder, a process of this machine, is dead."""
REPEAT = 5.0
"""Seconds after which the key is tried for though nobody said that it is free."""


def process_start(pid: int) -> str:
    """Start time of a process in the kernel's ticks; "" where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def machine() -> str:
    """Where process ids mean the same: host name, boot and pid namespace. "" where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def identity() -> str:
    """Who this process is: machine, pid and start time."""
    pid = os.getpid()
    return f"{machine()} {pid} {process_start(pid)} {os.urandom(4).hex()}"


def is_dead(holder: str) -> bool:
    """Is this the identity of a process of this machine that has ended? False when that is not known."""
    parts = holder.rsplit(" ", 3)
    if len(parts) != 4 or not parts[0] or parts[0] != machine() or not parts[1].isdigit():
        return False
    return process_start(int(parts[1])) != parts[2]


class LeaseKeeper:
    """One lease of this process, kept alive by `run`; `get` returns its id."""

    def __init__(self, store: Store, ttl: int = TTL) -> None:
        self.store = store
        self.ttl = ttl
        self.on_gone: Callable[[], None] = lambda: None
        """Called when the lease has ended: the leader keys went with it."""
        self._lease = 0
        self._until = 0.0
        self._lock = asyncio.Lock()

    @property
    def certain(self) -> bool:
        """Is the lease alive for sure? A process that was paused, or cut off from etcd, cannot know."""
        return bool(self._lease) and asyncio.get_running_loop().time() < self._until

    async def get(self) -> int:
        """The lease, made when there is none. EtcdError."""
        async with self._lock:
            if not self._lease:
                sent = asyncio.get_running_loop().time()
                self._lease = await self.store.etcd.lease_grant(self.ttl)
                self._until = sent + self.ttl - MARGIN
            return self._lease

    def forget(self, lease: int) -> None:
        """This lease has ended, and all that was taken with it: whoever finds out first says so to every term, for
        the next lease says nothing of their keys."""
        if lease and self._lease == lease:
            self._lease = 0
            self.on_gone()

    async def run(self) -> None:
        """Keep the lease alive until cancelled, then revoke it: another replica need not wait."""
        try:
            while True:
                await asyncio.sleep(self.ttl / RENEWALS)
                lease = self._lease
                if not lease:
                    continue
                try:
                    sent = asyncio.get_running_loop().time()
                    # One that hangs must not take the place of the next, which may go to another endpoint.
                    await self.store.etcd.lease_keepalive(lease, timeout=self.ttl / 2)
                    if self._lease == lease:
                        self._until = sent + self.ttl - MARGIN
                except LeaseGone:
                    log.warning("the lease ended before it was renewed: leaders are elected anew")
                    self.forget(lease)
                except EtcdError as error:
                    # Whatever it is: without this task each lease would end, and every term with it.
                    log.warning("the lease could not be renewed: %s", error)
        finally:
            await self._revoke()

    async def _revoke(self) -> None:
        lease, self._lease = self._lease, 0
        if lease:
            try:
                async with asyncio.timeout(1.0):
                    await self.store.etcd.lease_revoke(lease)
            except (EtcdError, TimeoutError) as error:
                log.info("the lease was not revoked, it ends by itself: %s", error)


Vacancy = Callable[[float], Awaitable[bool]]
"""Wait so many seconds at most for the leader key to become free; say whether it did."""


async def campaign(
    store: Store, group: str, resource: str, leases: LeaseKeeper, me: str,
    *, vacancy: Vacancy, known: Callable[[], int],
) -> int:  # fmt: skip
    """Wait until the leader key is ours; return the term. `known`: revision up to which etcd was read, asked for right
    before each try. EtcdError, StorageChanged."""
    said = ""
    while True:
        lease = await leases.get()
        try:
            before = known()
            result = await store.elect(group, resource, me, lease)
        except LeaseGone:
            leases.forget(lease)
            continue
        except Deposed:
            continue  # it went while we asked
        if isinstance(result, int):
            if result <= before:
                raise StorageChanged(f"etcd's revision went back from {before} to {result}", rewound=True)
            return result
        if result.identity == me or is_dead(result.identity):
            # Ours: a term before this one could not give it up. Another's: its process is known to be dead.
            log.info("%s: taking the leader key over from a sequencer that has ended", resource)
            await _evict(store, group, resource, result)
            continue
        if said != result.identity:
            said = result.identity
            log.info("%s: another process is the sequencer (%s): following", resource, said)
        for _ in range(int(REPEAT / POLL)):
            if await vacancy(POLL) or is_dead(result.identity):
                break


async def _evict(store: Store, group: str, resource: str, holder: Holder) -> None:
    key = store.keys.leader(group, resource)
    await store.etcd.txn([compare(key, "create", "=", holder.create_revision)], [op_delete(key)])
