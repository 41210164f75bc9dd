"""The manager role: leads or stands by, follows host and fleet, and works through the queue of workloads."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from reclock.scheduler.v1 import scheduler_pb2_grpc
from services.common.errors import StatusError
from services.common.fleet import FleetWatcher
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import NAMESPACES
from services.common.service import Service
from services.common.tasks import Backoff, Tasks
from services.scheduler import policy as policies
from services.scheduler.admission_api import AdmissionServicer
from services.scheduler.clock import SystemClock
from services.scheduler.config import SchedulerConfig
from services.scheduler.departures import Timeouts
from services.scheduler.engine import Engine, age_order
from services.scheduler.events import EventWriter
from services.scheduler.fleet import Fleet
from services.scheduler.heartbeats import Heartbeats
from services.scheduler.leader import Leader
from services.scheduler.ledger import OwnerKey
from services.scheduler.members import Members
from services.scheduler.objects import ObjectPlacer
from services.scheduler.placement_api import PlacementServicer, WatchHub
from services.scheduler.policy import Policy
from services.scheduler.resync import Resync
from services.scheduler.store import HostStore
from services.scheduler.workload import DUPLICATED, Key, Workload
from services.scheduler.workqueue import WorkQueue

log = logging.getLogger(__name__)

WAKE_PERIOD = 0.1
"""Seconds in which any amount of freed room wakes those that wait once."""

PATROL_PERIOD = 5.0
MEMBERS_GRACE = 15.0
STEP_LIMIT = 2.0
"""Seconds that steps in hand are given when this manager stops leading."""

STEPS = Counter("reclock_scheduler_steps_total", "Steps of workloads, by how they ended", ["result"])
SECONDS = Histogram(
    "reclock_scheduler_step_seconds", "Duration of a step, writes included",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
)  # fmt: skip
WAITING = Gauge("reclock_scheduler_waiting", "Workloads that wait for a cluster")
QUEUED = Gauge("reclock_scheduler_queue_depth", "Keys that wait to be looked at")
LEADING = Gauge("reclock_scheduler_leading", "1 on the manager that leads")


class Manager(Service[SchedulerConfig]):
    """Everything that decides happens while leading; reads are served always."""

    name = "scheduler"

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._clock = SystemClock()
        self._fleet = Fleet()
        self._queue: WorkQueue[Key] = WorkQueue()
        self._policies: dict[str, Policy] = {}
        self._hub = WatchHub()
        self._leading = False
        self._id = ""
        self._synced_at = 0.0
        self._wake = asyncio.Event()
        self._backoffs: dict[Key, Backoff] = {}

    async def start(self) -> None:
        """See Service."""
        config = self.config
        path = Path(config.host.kubeconfig) if config.host.kubeconfig else Path()
        self._host = await KubeClient.connect(path, name="", user_agent="reclock-scheduler")
        self.grpc.access.host = self._host
        self._store = HostStore(self._host, self._workload_changed, self._remaining)
        self._policy_informer = Informer(self._host, policies.POLICIES, handler=self._policy_changed)
        self._heartbeats = Heartbeats(
            self._host, self._clock, namespace=config.lease_namespace, timeout=config.worker_lost_timeout,
            fleet_id=self._fleet_id, exceptions=self._fence_exceptions, on_fenced=self._confirm_anew,
            remaining=self._remaining, uid_of=self._uid_of,
        )  # fmt: skip
        self._fleet.fence_wait = self._heartbeats.wait
        self._members = Members(
            self._fleet, self._clock, workers=config.workers, tls=config.tls, ttl=config.reservation_ttl,
            deadline=config.admit_timeout, on_change=self._member_changed, on_state=self._capacity_changed,
            resync=lambda cluster: self._resync.tell(cluster), heartbeats=self._heartbeats, fleet_id=lambda: self._id,
        )  # fmt: skip
        self._events = EventWriter(self._host)
        self._engine = Engine(
            self._store, self._fleet, self._clock, probe=self._members.probe, observe=self._events.observe,
            timeouts=Timeouts(config.admit_timeout, config.worker_lost_timeout, config.pods_ready_timeout),
            remaining=self._remaining,
        )  # fmt: skip
        self._resync = Resync(
            self._engine, lambda: self._leading and self._remaining() > 0, changed=self._member_changed
        )
        self._objects = ObjectPlacer(self._fleet)
        self._watcher = FleetWatcher(
            config.discovery_address, config.tls, user_agent="reclock-scheduler", with_leaving=True,
            state_file=config.state_file,
        )  # fmt: skip
        self._watcher.subscribe(self._members)
        self._leader = Leader(
            self._host, namespace=config.lease_namespace, seconds=config.lease_seconds, lead=self._lead
        )
        self._add_checks()
        self._serve()
        WAITING.set_function(lambda: len(self._engine.waiting))
        QUEUED.set_function(lambda: len(self._queue))
        LEADING.set_function(lambda: int(self._leading))
        for name, coro in (
            ("workloads", self._store.informer.run()), ("policies", self._policy_informer.run()),
            ("fleet", self._watcher.run()), ("events", self._events.run()), ("waker", self._wake_waiting()),
            ("patrol", self._patrol()),
        ):  # fmt: skip
            self.tasks.spawn(coro, name, root=True)
        self._leader_task = self.tasks.spawn(self._leader.run(), "leader", root=True)

    def _add_checks(self) -> None:
        def informed(informer: Informer, what: str) -> str | None:
            if informer.synced.is_set():
                return None
            return f"{what} were not read from the host yet{': ' + informer.last_error if informer.last_error else ''}"

        self.checks["workloads"] = lambda: informed(self._store.informer, "Workloads")
        self.checks["policies"] = lambda: informed(self._policy_informer, "PlacementPolicies")
        self.checks["discovery"] = self._watcher.check
        self.checks["members"] = self._members_missing

    def _members_missing(self) -> str | None:
        """Members are waited for a while only: a manager must start when all of them are away, too."""
        if not self._watcher.synced.is_set():
            return None
        now = self._clock.monotonic()
        self._synced_at = self._synced_at or now
        return self._members.unready() if now < self._synced_at + MEMBERS_GRACE else None

    def _serve(self) -> None:
        self.grpc.add(
            scheduler_pb2_grpc.add_PlacementServiceServicer_to_server,
            PlacementServicer(self._engine, self._objects, self._host, self._hub),
            "reclock.scheduler.v1.PlacementService",
        )
        self.grpc.add(
            scheduler_pb2_grpc.add_AdmissionServiceServicer_to_server,
            AdmissionServicer(self._members.local, self._members.signals),
            "reclock.scheduler.v1.AdmissionService",
        )

    # What happens around.

    def _enqueue(self, workload: Workload) -> None:
        priority, created = age_order(workload)
        self._queue.add(workload.key, (priority, created.timestamp()))

    def _workload_changed(self, key: Key, echo: bool) -> None:
        self._hub.changed(key)
        if echo or not self._leading:
            return
        workload = self._store.get(key)
        if workload is None:
            self._queue.add(key)
        else:
            self._enqueue(workload)

    def _policy_changed(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        name = obj["metadata"]["name"]
        if kind == "DELETED":
            self._policies.pop(name, None)
        else:
            self._policies[name] = policies.parse(obj)
        self._engine.policies = self._objects.policies = tuple(self._policies.values())
        self._fleet.touch()
        self._enqueue_all()

    def _enqueue_all(self) -> None:
        if self._leading:
            for workload in self._store:
                self._enqueue(workload)
            for key in self._engine.gone_keys():
                self._queue.add(key)

    def _member_changed(self, cluster: str) -> None:
        """Waiting workloads get a new chance, placed ones there may have to leave, leaving ones to stay after all."""
        if not self._leading:
            return
        for workload in self._store:
            here = workload.placement is not None and cluster in workload.placement.clusters
            if workload.placement is None or here or cluster in workload.moving or self._duplicated(workload):
                self._enqueue(workload)

    def _duplicated(self, workload: Workload) -> bool:
        return self._engine.policy_for(workload).type_for(workload.mode) == DUPLICATED

    # Fences.

    async def _fleet_id(self) -> str:
        """Uid of the host's kube-system, which is the origin label of copies; waits for the host."""
        backoff = Backoff(initial=0.2, maximum=5.0)
        while not self._id:
            try:
                self._id = str((await self._host.get(NAMESPACES, None, "kube-system"))["metadata"]["uid"])
            except StatusError as error:
                log.info("the fleet's id is not known yet: %s", error.message)
                await backoff.wait()
        return self._id

    def _fence_exceptions(self, cluster: str) -> dict[OwnerKey, float]:
        """Time-outs of at-most-once workloads there whose policy has one of its own."""
        if all(policy.worker_lost_timeout is None for policy in self._engine.policies):
            return {}
        found = {}
        for workload in self._engine.placed_on(cluster):
            limit = self._engine.policy_for(workload).worker_lost_timeout if workload.at_most_once else None
            if limit is not None:
                found[workload.owner] = limit
        return found

    def _confirm_anew(self, cluster: str) -> None:
        """A worker in contact says that copies are fenced: confirming what is still placed there lifts their fences."""
        for workload in self._engine.placed_on(cluster):
            if workload.at_most_once:
                self._engine.holds.forget(workload.uid, cluster)
                self._enqueue(workload)

    def _capacity_changed(self, cluster: str, freed: bool) -> None:
        if freed:
            self._wake.set()

    async def _wake_waiting(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(WAKE_PERIOD)
            self._wake.clear()
            if self._leading:
                for key in list(self._engine.waiting):
                    workload = self._store.get(key)
                    if workload is not None:
                        self._enqueue(workload)

    async def _patrol(self) -> None:
        """Pods that find no node tell nobody: their workloads are looked at now and then."""
        while True:
            await asyncio.sleep(PATROL_PERIOD)
            for key in self._engine.stuck_keys() if self._leading else ():
                workload = self._store.get(key)
                if workload is not None:
                    self._enqueue(workload)

    def _uid_of(self, cluster: str) -> str:
        """Which cluster it is that has the name, as discovery knows it."""
        member = self._fleet.members.get(cluster)
        return member.uid if member is not None else ""

    # Leading.

    def _remaining(self) -> float:
        """Seconds for which this process leads for sure."""
        return self._leader.remaining()

    async def _lead(self) -> None:
        await self._store.informer.synced.wait()
        await self._policy_informer.synced.wait()
        await self._watcher.synced.wait()
        await self._fleet_id()
        self._queue = WorkQueue()
        tasks = Tasks("scheduler/lead", on_failure=self._task_failed)
        try:
            self._leading = True
            await self._heartbeats.lead(tasks)
            for cluster, admission in list(self._fleet.admissions.items()):
                if admission.immediate:
                    await self._resync.tell(cluster)
                else:
                    # A worker knows what an earlier leader told it; one that hangs must not keep the others waiting.
                    tasks.spawn(self._resync.until_told(cluster), f"resync {cluster}")
            for number in range(self.config.concurrency):
                tasks.spawn(self._work(self._queue), f"worker {number}")
            self._enqueue_all()
            await asyncio.Event().wait()
        finally:
            self._leading = False
            self._heartbeats.retire()
            self._queue.close()
            # Steps in hand end by themselves; what they write late is refused by compare-and-swap.
            await tasks.wait(STEP_LIMIT)
            await tasks.close()

    async def _work(self, queue: WorkQueue[Key]) -> None:
        while (key := await queue.get()) is not None:
            try:
                await self._one(queue, key)
            finally:
                queue.done(key)

    async def _one(self, queue: WorkQueue[Key], key: Key) -> None:
        try:
            with SECONDS.time():
                wait = await self._engine.reconcile(key)
        except StatusError as error:
            STEPS.labels("host").inc()
            log.warning("%s/%s: the host did not take a step: %s", key.namespace, key.name, error.message)
            wait = self._backoff(key, error.retry_after)
        except Exception:
            # A bug that one workload meets must not stop all others.
            STEPS.labels("error").inc()
            log.exception("%s/%s: a step failed", key.namespace, key.name)
            wait = self._backoff(key, None)
        else:
            STEPS.labels("ok").inc()
            self._backoffs.pop(key, None)
        if wait is not None:
            workload = self._store.get(key)
            order = age_order(workload) if workload else None
            queue.add_after(key, wait, (order[0], order[1].timestamp()) if order else ())

    def _backoff(self, key: Key, hint: int | None) -> float:
        backoff = self._backoffs.setdefault(key, Backoff(initial=0.2, maximum=30.0))
        return backoff.next_delay(hint)

    # Stopping.

    async def stop_intake(self) -> None:
        """See Service."""
        self._leader_task.cancel()
        await asyncio.wait({self._leader_task})

    async def flush(self) -> None:
        """See Service."""
        await self._leader.resign()

    async def close(self) -> None:
        """See Service."""
        await self._members.close()
        await self._host.close()
