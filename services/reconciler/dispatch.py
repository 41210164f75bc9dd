"""The built-in controllers, as the reconcile protocol has controllers: each is told what is due by a channel of its own.

They are workers like anybody's: queue, leases, weights, pauses and hand-over are the service's, reached over gRPC. Only
their events are their own. A reconcile reads one cache of host and members, so that a division, its copies and its sums
are of one moment; therefore one worker has them all, that of the replica that has the host.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from prometheus_client import Counter, Histogram

from reclock import ApiError, Channel, Controller, On, Request, Requeue, Result, Target, controller
from services.common.errors import StatusError
from services.reconciler.channels import OWNED, key_of, target
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
MAX_BACKOFF = 60.0
HOST_WEIGHT = 100.0
SOURCES: dict[str, tuple[str, ...]] = {
    "reclock-workloads": (*KINDS, "workload"),
    "reclock-dependencies": (dependencies.KIND,),
    "reclock-namespaces": (NAMESPACE, namespaces.ROUTED_KEY.kind),
    "reclock-garbage": (OWNED, leaving.KIND),
}
"""Controller -> its sources."""
ON_MEMBERS = ("reclock-dependencies", "reclock-garbage")
"""Controllers that have nothing to do on the host."""


class Dispatcher:
    """Makes the controllers, and runs their reconciles. `due` says all that may be due in a cluster."""

    def __init__(
        self, context: Context, host_owners: HostOwners, due: Callable[[str], Iterable[Key]], workers: int
    ) -> None:
        self._context = context
        self._host_owners = host_owners
        self._due = due
        self.controllers = [self._controller(name, sources, workers) for name, sources in SOURCES.items()]
        self.by_source = {source: made for made in self.controllers for source in SOURCES[made.name]}

    def _controller(self, name: str, sources: tuple[str, ...], workers: int) -> Controller:
        made = controller(
            for_=[Channel(name=source) for source in sources], name=name,
            on=On.MEMBERS if name in ON_MEMBERS else On.ALL, max_in_flight=workers,
            # What the host does costs members nothing: it may use every worker, and goes first.
            weights={HOST: HOST_WEIGHT}, caps={HOST: workers},
            backoff_max=MAX_BACKOFF, tells=partial(self._tells, sources), sole=True, leaving=True,
        )  # fmt: skip
        # Failures are in the log once, as the queue tells them; bugs are told here.
        logging.getLogger(f"reclock.{name}").setLevel(logging.ERROR)
        return made(self._handle)

    def _tells(self, sources: tuple[str, ...], cluster: str) -> Iterator[Target]:
        for key in self._due(cluster):
            made = target(cluster, key)
            if made.source in sources:
                yield made

    async def _handle(self, request: Request) -> Result:
        started = time.perf_counter()
        outcome = "error"
        try:
            await self._reconcile(request.cluster_name, key_of(request))
            outcome = "ok"
            return None
        except Again as again:
            outcome = "again"
            return Requeue(again.delay, priority=0)
        except StatusError as error:
            return ApiError(error.message, code=error.code, reason=error.reason)
        except Exception:
            # About one object it must not stop the others: it is retried like any failure.
            log.exception("%s %s: the reconcile failed", request.cluster_name or "host", key_of(request))
            raise
        finally:
            RECONCILES.labels(request.source, outcome).inc()
            SECONDS.labels(request.source).observe(time.perf_counter() - started)

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
