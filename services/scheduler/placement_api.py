"""`PlacementService`: what the manager answers to other services, the CLI and anyone else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import msgspec

from reclock.scheduler.v1 import scheduler_pb2 as pb
from reclock.scheduler.v1 import scheduler_pb2_grpc
from services.common.errors import StatusError
from services.common.grpc import abort, abort_status
from services.common.kube.client import KubeClient
from services.scheduler import explain, verdict, wire, writing
from services.scheduler.engine import Engine
from services.scheduler.objects import ObjectPlacer
from services.scheduler.policy import Target
from services.scheduler.workload import WORKLOADS, Key, parse

log = logging.getLogger(__name__)

BACKLOG = 10_000
"""Changes that a watcher may be behind before its stream is ended."""


class WatchHub:
    """Hands changed keys to any number of watch streams."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[Key]] = set()

    def changed(self, key: Key) -> None:
        """Tell all; a stream that is too far behind is ended by what it finds in its queue."""
        for queue in self._queues:
            if not queue.full():
                queue.put_nowait(key)

    def subscribe(self) -> asyncio.Queue[Key]:
        """Return a bounded queue of keys."""
        queue: asyncio.Queue[Key] = asyncio.Queue(BACKLOG)
        self._queues.add(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[Key]) -> None:
        """Send no more."""
        self._queues.discard(queue)


class PlacementServicer(scheduler_pb2_grpc.PlacementServiceServicer):
    """Reads from the manager's copy of the Workloads; writes go to the host."""

    def __init__(self, engine: Engine, objects: ObjectPlacer, host: KubeClient, hub: WatchHub) -> None:
        self._engine, self._objects, self._host, self._hub = engine, objects, host, hub

    async def Submit(self, request: pb.SubmitRequest, context: grpc.aio.ServicerContext) -> pb.SubmitResponse:
        """See the proto."""
        message = request.workload
        ref = message.ref
        if not ref.namespace or not ref.name or not message.owner.kind or not message.owner.name:
            text = "workload.ref and workload.owner need a namespace, names and a kind"
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        try:
            wire.pod_sets_from_proto(message.pod_sets)
            body = _object(message)
        except (ValueError, msgspec.DecodeError) as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            await self._write(body, message.resource_version)
        except StatusError as error:
            await abort_status(context, error)
        return pb.SubmitResponse(workload=await self._stored(ref, context))

    async def _write(self, body: dict[str, Any], version: str) -> None:
        metadata = body["metadata"]
        try:
            if not version:
                await self._host.create(WORKLOADS, metadata["namespace"], body)
                return
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
        patch = {"metadata": {"resourceVersion": version} if version else {}, "spec": body["spec"]}
        await self._host.patch(WORKLOADS, metadata["namespace"], metadata["name"], patch)

    async def _stored(self, ref: pb.WorkloadRef, context: grpc.aio.ServicerContext) -> pb.Workload:
        try:
            return wire.workload_to_proto(parse(await self._host.get(WORKLOADS, ref.namespace, ref.name)))
        except StatusError as error:
            await abort_status(context, error)

    async def Get(self, request: pb.GetRequest, context: grpc.aio.ServicerContext) -> pb.GetResponse:
        """See the proto."""
        found = self._engine.store.get(Key(request.ref.namespace, request.ref.name))
        if found is None:
            text = f"there is no workload {request.ref.namespace}/{request.ref.name}"
            await abort(context, grpc.StatusCode.NOT_FOUND, text)
        return pb.GetResponse(workload=wire.workload_to_proto(found))

    async def List(self, request: pb.ListRequest, context: grpc.aio.ServicerContext) -> pb.ListResponse:
        """See the proto."""
        found = [w for w in self._engine.store if request.namespace in ("", w.key.namespace)]
        return pb.ListResponse(workloads=[wire.workload_to_proto(w) for w in sorted(found, key=lambda w: w.key)])

    async def Watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchResponse]:
        """See the proto."""
        kinds = pb.WatchResponse
        queue = self._hub.subscribe()
        try:
            for workload in list(self._engine.store):
                if request.namespace in ("", workload.key.namespace):
                    yield pb.WatchResponse(
                        type=kinds.EVENT_TYPE_UPDATED, workload=wire.workload_to_proto(workload)
                    )
            yield pb.WatchResponse(type=kinds.EVENT_TYPE_SYNCED)
            while True:
                if queue.full():
                    text = f"this watch is {BACKLOG} changes behind; open it again"
                    await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
                key = await queue.get()
                if request.namespace in ("", key.namespace):
                    yield self._event(key)
        finally:
            self._hub.unsubscribe(queue)

    def _event(self, key: Key) -> pb.WatchResponse:
        found = self._engine.store.get(key)
        if found is None:
            ref = pb.WorkloadRef(namespace=key.namespace, name=key.name)
            return pb.WatchResponse(type=pb.WatchResponse.EVENT_TYPE_DELETED, workload=pb.Workload(ref=ref))
        return pb.WatchResponse(
            type=pb.WatchResponse.EVENT_TYPE_UPDATED, workload=wire.workload_to_proto(found)
        )

    async def Cancel(self, request: pb.CancelRequest, context: grpc.aio.ServicerContext) -> pb.CancelResponse:
        """See the proto."""
        try:
            await self._host.delete(WORKLOADS, request.ref.namespace, request.ref.name)
        except StatusError as error:
            await abort_status(context, error)
        return pb.CancelResponse()

    async def Explain(self, request: pb.ExplainRequest, context: grpc.aio.ServicerContext) -> pb.ExplainResponse:
        """See the proto."""
        owner = request.owner
        workload = explain.find(self._engine, owner.namespace, owner.kind, owner.name)
        if workload is None:
            text = f"no workload stands for {owner.kind} {owner.namespace}/{owner.name}"
            await abort(context, grpc.StatusCode.NOT_FOUND, text)
        placed: Mapping[str, int] = workload.placement.clusters if workload.placement else {}
        found = await explain.verdicts(self._engine, workload)
        return pb.ExplainResponse(
            workload=wire.workload_to_proto(workload),
            verdicts=[verdict.to_proto(item, placed.get(item.cluster, 0)) for item in found],
        )

    async def PlaceObject(
        self, request: pb.PlaceObjectRequest, context: grpc.aio.ServicerContext
    ) -> pb.PlaceObjectResponse:
        """See the proto."""
        try:
            obj = msgspec.json.decode(request.manifest) if request.manifest else {}
            if not isinstance(obj, dict):
                raise ValueError("the manifest is no JSON object")
            labels = (obj.get("metadata") or {}).get("labels") or {}
            target = Target(request.api_version, request.kind, request.namespace, request.name, labels)
            pick = await self._objects.place(obj, target, request.candidates)
        except (ValueError, TypeError, AttributeError, msgspec.DecodeError) as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, f"the manifest cannot be placed: {error}")
        if pick.cluster is None:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, writing.nowhere(pick.verdicts))
        found = sorted(pick.verdicts.values(), key=lambda v: (v.cluster != pick.cluster, not v.eligible, -v.score))
        return pb.PlaceObjectResponse(
            cluster=pick.cluster, fits=pick.fits, verdicts=[verdict.to_proto(item) for item in found]
        )


def _object(message: pb.Workload) -> dict[str, Any]:
    """The `Workload` object that a submitted message stands for."""
    owner = message.owner
    pod_sets = []
    for item in message.pod_sets:
        entry: dict[str, Any] = {"name": item.name or "main", "count": item.count, "requests": dict(item.requests)}
        if item.constraints:
            entry["constraints"] = msgspec.json.decode(item.constraints)
        pod_sets.append(entry)
    spec = {
        "owner": {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid},
        "podSets": pod_sets, "suspend": message.suspend,
    }  # fmt: skip
    return {
        "apiVersion": WORKLOADS.group_version, "kind": WORKLOADS.kind,
        "metadata": {"namespace": message.ref.namespace, "name": message.ref.name}, "spec": spec,
    }  # fmt: skip
