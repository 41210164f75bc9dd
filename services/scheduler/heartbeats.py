"""The manager's contact with the workers beside its members: who fences, and when that can be relied on (rule 4).

What a worker said last is kept in a Lease on the host, so that a new leader knows it. Its own clock says when it began
to lead: no earlier leader was in contact after that, so three quarters of the time-out later every worker has fenced,
whatever the wall clocks say. A word about one cluster says nothing about another one that has its name later.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration

from reclock.scheduler.v1 import scheduler_pb2 as pb
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.resource import LEASES
from services.common.tasks import Tasks
from services.scheduler import policy
from services.scheduler.clock import Clock
from services.scheduler.ledger import OwnerKey
from services.scheduler.store import Remaining, forever
from services.scheduler.wire import owner_to_proto

log = logging.getLogger(__name__)

LABEL = "reclock.dev/worker"
FENCES, CLUSTER, LONGEST, UID = (
    "reclock.dev/fences", "reclock.dev/cluster", "reclock.dev/longest-fence", "reclock.dev/cluster-uid",
)  # fmt: skip
SETTLED = 0.75
"""Part of the time-out after which a new leader needs no clock but its own."""
SHORTEST, LONGEST_PERIOD = 0.5, 10.0
CALL_LIMIT = 5.0
LONGEST_SAID = float(policy.LONGEST)

Send = Callable[[pb.HeartbeatRequest], Awaitable[pb.HeartbeatResponse]]
Exceptions = Callable[[str], Mapping[OwnerKey, float]]


@dataclass(slots=True)
class Known:
    """What is known of one worker. Times of `heard` are the manager's monotonic ones."""

    fences: bool = False
    heard: float | None = None
    """When it last answered this leader; None: only what an earlier leader wrote is known."""
    renewed: datetime | None = None
    longest: float = 0.0
    """The longest time, of any of its copies, that it was told."""
    asked: float = 0.0
    """The longest time of the request under way."""
    nonce: str = ""
    problem: str = ""
    uid: str = ""
    """Of the cluster that the worker is beside; "" where it does not say."""
    saved: tuple[bool, float, str, float] = (False, 0.0, "", float("-inf"))
    lease: dict[str, Any] | None = field(default=None, repr=False)


class Heartbeats:
    """One task per worker while this manager leads. `wait(cluster, limit)` is what placement asks."""

    def __init__(
        self, host: KubeClient, clock: Clock, *, namespace: str, timeout: float, fleet_id: Callable[[], Awaitable[str]],
        exceptions: Exceptions, on_fenced: Callable[[str], None], remaining: Remaining = forever,
        uid_of: Callable[[str], str] = lambda cluster: "",
    ) -> None:  # fmt: skip
        self._host, self._clock, self._namespace = host, clock, namespace
        self._timeout, self._fleet_id = timeout, fleet_id
        self._exceptions, self._on_fenced = exceptions, on_fenced
        self._remaining, self._uid_of = remaining, uid_of
        self._known: dict[str, Known] = {}
        self._senders: dict[str, Send] = {}
        self._tasks: Tasks | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._began = clock.monotonic()

    @property
    def period(self) -> float:
        """Seconds between heartbeats."""
        return min(max(self._timeout / 20, SHORTEST), LONGEST_PERIOD)

    def engage(self, cluster: str, send: Send) -> None:
        """A worker is beside this member."""
        self._senders[cluster] = send
        if self._tasks is not None:
            self._running[cluster] = self._tasks.spawn(self._beat(cluster, send), f"heartbeat {cluster}")

    def disengage(self, cluster: str) -> None:
        """It is no member any more."""
        self._senders.pop(cluster, None)
        self._known.pop(cluster, None)
        task = self._running.pop(cluster, None)
        if task is not None:
            task.cancel()

    async def lead(self, tasks: Tasks) -> None:
        """Begin, for as long as `tasks` live. Before this returns, what earlier leaders knew is read, if it can be."""
        self._began = self._clock.monotonic()
        self._known = {}
        try:
            async with asyncio.timeout(CALL_LIMIT):
                leases = (await self._host.list(LEASES, self._namespace, labelSelector=LABEL))["items"]
        except (TimeoutError, StatusError) as error:
            log.warning("what the workers said before is not known: %s", error)
            leases = []
        for lease in leases:
            self._restore(lease)
        self._tasks = tasks
        for cluster, send in self._senders.items():
            self._running[cluster] = tasks.spawn(self._beat(cluster, send), f"heartbeat {cluster}")

    def retire(self) -> None:
        """Somebody else leads."""
        self._tasks = None
        self._running = {}

    def _restore(self, lease: dict[str, Any]) -> None:
        notes = lease["metadata"].get("annotations") or {}
        renewed = (lease.get("spec") or {}).get("renewTime")
        cluster = notes.get(CLUSTER, "")
        if not cluster or not renewed:
            return
        try:
            longest, moment = float(notes.get(LONGEST) or 0), datetime.fromisoformat(renewed.replace("Z", "+00:00"))
            if not 0 <= longest <= LONGEST_SAID:
                raise ValueError(f"{longest} s")
        except ValueError as error:
            # Nothing is known then: what must not run twice stays until the worker is heard again.
            log.warning("%s: what its worker said before is unreadable in its Lease: %s", cluster, error)
            return
        self._known[cluster] = Known(
            fences=notes.get(FENCES) == "true", renewed=moment, longest=longest, uid=notes.get(UID, ""), lease=lease
        )

    def wait(self, cluster: str, limit: float) -> float | None:
        """Seconds until what must not run twice has been stopped on a lost member; None: that is not known to happen.

        `limit` is the time-out of the workload. What an earlier leader wrote counts only where there still is a worker.
        """
        known = self._known.get(cluster) if cluster in self._senders else None
        if known is None or not known.fences or self._is_beside_another(cluster, known.uid):
            return None
        limit = max(limit, 2 * known.longest)
        if known.heard is not None:
            return max(known.heard + limit - self._clock.monotonic(), 0.0)
        assert known.renewed is not None
        by_wall = limit - (self._clock.now() - known.renewed).total_seconds()
        return max(by_wall, self._began + SETTLED * limit - self._clock.monotonic(), 0.0)

    def _is_beside_another(self, cluster: str, uid: str) -> bool:
        wanted = self._uid_of(cluster)
        return bool(uid and wanted) and uid != wanted

    async def _beat(self, cluster: str, send: Send) -> None:
        fleet_id = await self._fleet_id()
        while True:
            if self._remaining() <= 0:
                # Who leads now counts on it that we are not heard any more.
                await asyncio.sleep(self.period)
                continue
            try:
                async with asyncio.timeout(CALL_LIMIT):
                    answer = await send(self._request(cluster, fleet_id))
                await self._heard(cluster, answer)
            except (TimeoutError, StatusError) as error:
                self._note_problem(cluster, getattr(error, "message", "") or "no answer")
            except Exception:
                # Without heartbeats the worker stops what runs there: a bug must not end them.
                log.exception("a heartbeat of %s failed", cluster)
            await asyncio.sleep(self.period)

    def _request(self, cluster: str, fleet_id: str) -> pb.HeartbeatRequest:
        known = self._known.setdefault(cluster, Known())
        exceptions = self._exceptions(cluster)
        half = self._timeout / 2
        # A longer time that was told before holds until the worker says that it has taken these.
        known.asked = max(half, *(limit / 2 for limit in exceptions.values()), 0.0)
        known.longest = max(known.longest, known.asked)
        request = pb.HeartbeatRequest(
            cluster=cluster, fleet_id=fleet_id, acknowledged=known.nonce, fence_after=_duration(half)
        )
        for owner, limit in sorted(exceptions.items()):
            request.exceptions.add(owner=owner_to_proto(owner), fence_after=_duration(limit / 2))
        return request

    async def _heard(self, cluster: str, answer: pb.HeartbeatResponse) -> None:
        known = self._known.setdefault(cluster, Known())
        # Before it is acknowledged: the worker counts from earlier.
        known.heard, known.fences, known.uid = self._clock.monotonic(), answer.fences, answer.cluster_uid
        if answer.renewed:
            known.longest = known.asked
        problem = answer.problem
        if self._is_beside_another(cluster, known.uid):
            problem = f"it is beside another cluster (uid {known.uid}): give it access to this one"
        self._note_problem(cluster, problem)
        await self._save(cluster, known)
        known.nonce = answer.nonce
        if answer.fenced:
            self._on_fenced(cluster)

    def _note_problem(self, cluster: str, problem: str) -> None:
        known = self._known.setdefault(cluster, Known())
        if problem and problem != known.problem:
            log.warning("%s: its worker gives no heartbeat, or does not fence: %s", cluster, problem)
        known.problem = problem

    async def _save(self, cluster: str, known: Known) -> None:
        """Write down what a next leader must know; seldom, unless it changed."""
        now = self._clock.monotonic()
        *said, at = known.saved
        if said == [known.fences, known.longest, known.uid] and now < at + self._timeout / 10:
            return
        body = {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {
                "name": lease_name(cluster), "namespace": self._namespace, "labels": {LABEL: "true"},
                "annotations": {
                    CLUSTER: cluster, FENCES: str(known.fences).lower(), LONGEST: repr(known.longest),
                    UID: known.uid,
                },
            },
            "spec": {
                "holderIdentity": cluster, "renewTime": self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "leaseDurationSeconds": max(1, round(self._timeout)),
            },
        }  # fmt: skip
        try:
            async with asyncio.timeout(CALL_LIMIT):
                await self._put(known, body)
        except (TimeoutError, StatusError) as error:
            known.lease = None
            log.info("%s: what its worker said is not written down: %s", cluster, error)
        else:
            known.saved = (known.fences, known.longest, known.uid, now)

    async def _put(self, known: Known, body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        if known.lease is None:
            try:
                known.lease = await self._host.create(LEASES, self._namespace, body)
                return
            except StatusError as error:
                if error.reason != "AlreadyExists":
                    raise
            known.lease = await self._host.get(LEASES, self._namespace, name)
        body["metadata"]["resourceVersion"] = known.lease["metadata"]["resourceVersion"]
        known.lease = await self._host.update(LEASES, self._namespace, body)


def lease_name(cluster: str) -> str:
    """Name of the Lease of a cluster's worker."""
    return f"reclock-worker-{re.sub(r'[^a-z0-9-]', '-', cluster.lower())}"[:253]


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration
