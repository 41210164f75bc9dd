"""The sinker as a service: a worker that follows Sinks, and one more for each of them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from prometheus_client import REGISTRY

from reclock import (
    ApiError,
    Changed,
    Conflict,
    Fleet,
    For,
    NotFound,
    Object,
    On,
    Predicates,
    ReclockError,
    Request,
    Requeue,
    Result,
    Worker,
    controller,
)
from services.common.errors import StatusError
from services.common.service import Service
from services.common.tasks import Backoff
from services.sinker.config import SinkerConfig
from services.sinker.sink import Fleets, Sink
from services.sinker.spec import SINKS, Spec
from services.sinker.tally import CopiesMetric, Tally

log = logging.getLogger(__name__)

FINALIZER = "reclock.dev/sinks"
STATUS_SECONDS = 0.5
"""Status is written this long after a change, with all that came meanwhile."""
RETRY_SECONDS = 5.0
Kubeconfig = str | dict[str, Any] | None
DRAIN_SECONDS = 3.0


class Running:
    """A Sink at work, and its tasks."""

    def __init__(self, sink: Sink, tasks: list[asyncio.Task[None]]) -> None:
        self.sink = sink
        self._tasks = tasks

    async def stop(self) -> None:
        """End it in order."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class SinkerService(Service[SinkerConfig]):
    """Needs the host, the front and the reconciler, and no credentials of any member."""

    name = "sinker"

    def __init__(self, config: SinkerConfig) -> None:
        super().__init__(config)
        self._fleets: Fleets | None = None
        self._running: dict[str, Running] = {}
        self._tallies: dict[str, Tally] = {}
        self._waiting = "the host and the reconciler have not been reached yet"
        self._metric = CopiesMetric(self._tallies)
        self.checks["reconciler"] = lambda: self._waiting or None

    @property
    def fleets(self) -> Fleets:
        """From `start` on."""
        assert self._fleets is not None
        return self._fleets

    async def start(self) -> None:
        """Connect; the rest when host and reconciler are there."""
        await self.start_with(self.config.host.kubeconfig or None, self.config.front_kubeconfig)

    async def start_with(self, host: Kubeconfig, front: Kubeconfig) -> None:
        """Start with kubeconfigs as paths, or as they were read."""
        self._fleets = Fleets(await Fleet.connect(host), await Fleet.connect(front))
        REGISTRY.register(self._metric)
        self.tasks.spawn(self._work(), "sinks", root=True)

    async def _work(self) -> None:
        self.fleets.fleet_id = await self._fleet_id()
        self.tasks.spawn(self.fleets.follow(), "clusters", root=True)
        name = f"sinks-{self.fleets.instance}"
        follows = For(SINKS, name=name, on=On.HOST, predicates=Predicates(changes=[Changed.GENERATION]))
        async with self.worker(controller(for_=follows, on=On.HOST, name="sinker")(self.reconcile)) as worker:
            self._waiting = ""
            await worker.wait()

    def worker(self, *controllers: object) -> Worker:
        """A worker as any user's, with our settings."""
        tls = self.config.tls
        return Worker(
            *controllers, fleet=self.fleets.members, reconciler=self.config.reconciler_address, drain=DRAIN_SECONDS,  # type: ignore[arg-type]
            tls_cert=tls.cert, tls_key=tls.key, tls_ca=tls.ca,
        )  # fmt: skip

    async def _fleet_id(self) -> str:
        """Uid of the host's kube-system; waits for the host."""
        backoff = Backoff(initial=0.2, maximum=5.0)
        while True:
            try:
                system = await self.fleets.host.host.get("v1/namespaces", "kube-system")
            except ApiError as error:
                self._waiting = str(error)
                await backoff.wait()
                continue
            return str(system["metadata"]["uid"])

    async def reconcile(self, request: Request) -> Result:
        """A Sink has come, changed, or goes."""
        host, name = self.fleets.host.host, request.name
        sink = await host.find(SINKS, name)
        if sink is None:
            await self._end_worker(name)
            return None
        if sink["metadata"].get("deletionTimestamp"):
            return await self._end(sink, Spec.named(sink))
        try:
            spec = Spec.of(sink)
        except StatusError as error:
            await self._end_worker(name)  # what it said before would be written over this
            await self._write(name, _refusal(sink, error.message))
            return None
        if FINALIZER not in (sink["metadata"].get("finalizers") or ()):
            await self._set_finalizers(sink, [*(sink["metadata"].get("finalizers") or ()), FINALIZER])
        running = self._running.get(name)
        if running is None or (running.sink.spec.uid, running.sink.spec.generation) != (spec.uid, spec.generation):
            await self._end_worker(name)
            self._begin(sink, spec)
        return None

    def _begin(self, sink: Object, spec: Spec) -> None:
        tally = self._tallies[spec.name] = Tally(spec, list((sink.get("status") or {}).get("conditions") or ()))
        made = Sink(spec, self.fleets, tally, self.config.resync_seconds)
        tasks = [
            self.tasks.spawn(self._run(made), f"sink {spec.name}"),
            self.tasks.spawn(self._tell(made), f"status of {spec.name}"),
        ]
        self._running[spec.name] = Running(made, tasks)
        log.info("Sink %s: %s of %s", spec.name, spec.resource, spec.source or "the host")

    async def _run(self, sink: Sink) -> None:
        """Work for a Sink until cancelled; what the reconciler refuses is in the status, and tried again."""
        backoff = Backoff(initial=1.0, maximum=60.0)
        while True:
            try:
                async with self.worker(sink.controller()) as worker:
                    sink.tally.refuse("")
                    backoff.reset()
                    await worker.wait()
                    return
            except (ReclockError, ValueError) as error:
                log.warning("Sink %s: %s", sink.spec.name, error)
                sink.tally.refuse(str(error))
            await backoff.wait()

    async def _tell(self, sink: Sink) -> None:
        """Write the status and events whenever they change, until cancelled."""
        backoff = Backoff(initial=STATUS_SECONDS, maximum=30.0)
        while True:
            await sink.tally.changed.wait()
            await asyncio.sleep(STATUS_SECONDS)
            sink.tally.changed.clear()
            try:
                await self._write(sink.spec.name, sink.tally.status())
                for event in sink.tally.events():
                    await self.fleets.host.host.create(event, resource="events.k8s.io/v1/events")
                backoff.reset()
            except ApiError as error:
                log.info("Sink %s: its status is not written: %s", sink.spec.name, error)
                sink.tally.changed.set()
                await backoff.wait()

    async def _write(self, name: str, status: Object) -> None:
        try:
            await self.fleets.host.host.patch(SINKS, name, {"status": status}, subresource="status")
        except NotFound:
            return  # it is gone meanwhile

    async def _end(self, sink: Object, spec: Spec) -> Result:
        """Remove every copy, then let the Sink go; a cluster that is away is waited for as long as it is in the fleet."""
        await self._end_worker(spec.name)
        if FINALIZER not in (sink["metadata"].get("finalizers") or ()):
            return None
        left = await Sink(spec, self.fleets, Tally(spec, []), self.config.resync_seconds).empty()
        if left:
            await self._write(spec.name, _refusal(sink, f"its copies are not removed yet: {'; '.join(left)}"))
            return Requeue(after=RETRY_SECONDS)
        await self._set_finalizers(sink, [one for one in sink["metadata"]["finalizers"] if one != FINALIZER])
        log.info("Sink %s: gone, and all of its copies", spec.name)
        return None

    async def _set_finalizers(self, sink: Object, finalizers: list[str]) -> None:
        metadata = {"finalizers": finalizers, "resourceVersion": sink["metadata"]["resourceVersion"]}
        try:
            await self.fleets.host.host.patch(SINKS, sink["metadata"]["name"], {"metadata": metadata})
        except Conflict as error:
            raise Requeue(after=0.1) from error

    async def _end_worker(self, name: str) -> None:
        self._tallies.pop(name, None)
        running = self._running.pop(name, None)
        if running is not None:
            await running.stop()

    async def stop_intake(self) -> None:
        """End the Sinks' workers in order: what they hold goes back at once."""
        await asyncio.gather(*(self._end_worker(name) for name in list(self._running)))

    async def close(self) -> None:
        """Leave the host and the front."""
        if self._fleets is not None:
            REGISTRY.unregister(self._metric)
            await self._fleets.host.close()
            await self._fleets.members.close()


def _refusal(sink: Object, message: str) -> Object:
    """A status that says why nothing is done."""
    spec = Spec.named(sink)
    tally = Tally(spec, list((sink.get("status") or {}).get("conditions") or ()))
    tally.refuse(message)
    return {"conditions": tally.status()["conditions"], "observedGeneration": spec.generation}
