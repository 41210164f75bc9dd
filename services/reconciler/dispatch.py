"""The workers: take keys from the fair queue, run their reconcile, say how it went."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from prometheus_client import Counter, Histogram

from _fastpath.fair_queue import FairQueue, Item, ShutDown
from services.common.errors import StatusError
from services.reconciler import keys
from services.reconciler.controllers import (
    copies,
    dependencies,
    garbage,
    leaving,
    namespaces,
    owners,
    workloads,
)
from services.reconciler.controllers.context import Again, Context
from services.reconciler.host_owners import HostOwners
from services.reconciler.keys import Key
from services.reconciler.names import COPIED, HOST, NAMESPACE
from services.reconciler.workload_spec import KINDS

log = logging.getLogger(__name__)

RECONCILES = Counter(
    "reclock_reconciler_reconciles_total", "Reconciles by kind and outcome", ["kind", "outcome"]
)
SECONDS = Histogram("reclock_reconciler_seconds", "Duration of reconciles", ["kind"])
INVALID_PAUSE = 0.05
"""Seconds until it is looked again whether this replica may work."""
WARN_AFTER = 5
"""Failures of one key in a row before its errors are warnings."""


class Dispatcher:
    """Runs reconciles; `work` is one worker."""

    def __init__(
        self, context: Context, queue: FairQueue, host_owners: HostOwners, valid: Callable[[], bool] = lambda: True
    ) -> None:
        self._context = context
        self._valid = valid
        """Whether this replica has the host for sure; asked before each reconcile."""
        self._queue = queue
        self._host_owners = host_owners

    async def work(self) -> None:
        """Work until the queue is shut down."""
        while True:
            try:
                item = await self._queue.get()
            except ShutDown:
                return
            try:
                if self._valid():
                    await self._one(item)
                else:
                    # This process did not run, or etcd is away: another replica may have the host, and we an old picture.
                    self._queue.add(item.cluster, item.key, item.priority)
                    await asyncio.sleep(INVALID_PAUSE)
            except asyncio.CancelledError:
                # Not ended: whoever works next has to run it again.
                self._queue.add(item.cluster, item.key, item.priority)
                raise
            finally:
                self._queue.done(item)

    async def _one(self, item: Item) -> None:
        key = keys.parse(item.key)
        kind = key.kind.partition("/")[0]
        started = time.perf_counter()
        outcome = "error"
        try:
            await self._reconcile(item.cluster, key)
        except Again as again:
            outcome = "again"
            self._queue.forget(item.cluster, item.key)
            self._queue.add_after(item.cluster, item.key, again.delay)
        except StatusError as error:
            level = logging.WARNING if item.attempts >= WARN_AFTER else logging.INFO
            log.log(level, "%s %s: %s (attempt %d)", item.cluster or "host", key, error.message, item.attempts + 1)
            self._queue.add_rate_limited(item.cluster, item.key)
        except Exception:
            # A bug about one object must not stop the others; it is retried like any failure.
            log.exception("%s %s: the reconcile failed", item.cluster or "host", key)
            self._queue.add_rate_limited(item.cluster, item.key)
        else:
            outcome = "ok"
            self._queue.forget(item.cluster, item.key)
        RECONCILES.labels(kind, outcome).inc()
        SECONDS.labels(kind).observe(time.perf_counter() - started)

    async def _reconcile(self, cluster: str, key: Key) -> None:
        if cluster == HOST:
            await self._on_host(key)
            return
        member = self._context.world.members.get(cluster)
        if member is not None and key.kind == leaving.KIND:
            await leaving.reconcile(self._context, member)
            return
        if member is None or not member.reachable or not member.synced:
            # It makes everything due that concerns it when it is back.
            return
        if key.kind in COPIED:
            await copies.reconcile(self._context, member, key)
        elif key.kind == dependencies.KIND:
            await dependencies.reconcile(self._context, member, key)
        elif key == namespaces.ROUTED_KEY:
            await namespaces.reconcile_routed(self._context, member)
        elif key.kind == NAMESPACE:
            await namespaces.reconcile_member(self._context, member, key)
        else:
            await garbage.reconcile_owned(self._host_owners, member, key)

    async def _on_host(self, key: Key) -> None:
        if key.kind in KINDS:
            await owners.reconcile(self._context, key)
        elif key.kind == "workload":
            await workloads.reconcile(self._context, key)
        else:
            await namespaces.reconcile_host(self._context, key)
