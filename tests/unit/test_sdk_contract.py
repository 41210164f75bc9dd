"""The SDK leaves nothing of the contract out: by reflection over its descriptors."""

from __future__ import annotations

import inspect
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

import reclock
from reclock import (
    Annotation,
    Changed,
    Channel,
    Field,
    For,
    Index,
    Label,
    Mode,
    On,
    Owner,
    Owns,
    Predicates,
    Queues,
    Seen,
    SyncRequest,
    Target,
    Watch,
    controller,
)  # fmt: skip
from reclock._session import Session
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.testing import FakeFleet, FakeService, World

V0_ONLY = {"mapping"}
"""Fields that this version of the protocol has replaced."""
AMONG_REPLICAS = {"this_replica"}


def mapper(seen: Seen) -> list[Target]:
    return [Target(seen.object["metadata"]["name"], "there", cluster="west", source="main", priority=4)]


CHOICE = Predicates(changes=[Changed.LABELS], created=False, updated=False, deleted=False)


@controller(
    for_=[For("v1/configmaps", name="main", labels="a=b", fields="metadata.name=x", namespaces=["n"], on=On.ALL,
              predicates=CHOICE, optional=True, priority=3),
          Channel(name="told", target="main")],
    owns=[Owns("apps/v1/deployments", kind="apps/Deployment", target="main")],
    watches=[
        Watch("v1/secrets", by=Owner("x/Y", any_owner=True, cluster_scoped=True)),
        Watch("v1/secrets", by=Label("k", to_host=True, cluster_scoped=True)),
        Watch("v1/secrets", by=Annotation("k", to_host=True)),
        Watch("v1/pods", by=Field("spec.nodeName", cluster_scoped=True)),
        Watch("v1/pods", by=mapper, whole_object=True, name="mine"),
    ],
    name="everything", where="env=prod", on=On.ALL, max_in_flight=5, weights={"east": 2.0}, caps={"east": 3},
    mode=Mode.PRIORITY_FIRST, backoff_base=0.5, backoff_max=5.0, leaving=True,
    indexes=[Index(name="l", label="x", source="main"), Index(name="a", annotation="y"), Index(name="p", path="spec.z")],
)  # fmt: skip
def everything(request: SyncRequest) -> None:
    """Says everything that a registration can say."""


def set_fields(message: Message, found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Which fields of which message types are set, anywhere inside."""
    seen = found.setdefault(message.DESCRIPTOR.full_name, set())
    for field, value in message.ListFields():
        seen.add(field.name)
        if field.type == FieldDescriptor.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry:
            for one in value if field.is_repeated else [value]:
                set_fields(one, found)
    return found


def names(descriptor: Descriptor) -> set[str]:
    return {field.name for field in descriptor.fields}


def test_a_registration_can_say_everything() -> None:
    found = set_fields(everything.register("me"), {})
    types: list[Descriptor] = [
        pb.Register.DESCRIPTOR, pb.Source.DESCRIPTOR, pb.Predicates.DESCRIPTOR, pb.ByOwner.DESCRIPTOR,
        pb.ByLabel.DESCRIPTOR, pb.ByAnnotation.DESCRIPTOR, pb.ByField.DESCRIPTOR, pb.ByWorker.DESCRIPTOR,
        pb.Naming.DESCRIPTOR, pb.Index.DESCRIPTOR, pb.ForObject.DESCRIPTOR,
    ]  # fmt: skip
    for descriptor in types:
        missing = names(descriptor) - found[descriptor.full_name] - V0_ONLY
        assert not missing, f"the SDK cannot set {missing} of {descriptor.name}"


def test_enums_are_complete() -> None:
    for ours, theirs in ((On, pb.Scope), (Mode, pb.Mode), (Changed, pb.Change)):
        known = {one.value for one in ours}  # type: ignore[attr-defined]
        assert known == set(theirs.values()) - {0}, theirs.DESCRIPTOR.name


class _Note(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, rpcs: set[str]) -> None:
        self._rpcs = rpcs

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        self._rpcs.add(details.method)
        return await continuation(details)


async def test_every_rpc_and_every_message_of_work_is_used(monkeypatch: Any) -> None:
    rpcs: set[str] = set()
    make = grpc.aio.server
    monkeypatch.setattr(grpc.aio, "server", lambda **options: make(interceptors=[_Note(rpcs)], **options))

    async with World(everything, clusters=["east"]) as world:
        service = world.service
        assert (await world.reconcile("east", "n", "x", source="main")).ok
        keys = await service.map("mine", "east", {"metadata": {"name": "p"}})
        assert keys == [
            pb.MappedKey(cluster="west", namespace="there", name="p", source="main", priority=4)
        ]
        await world.worker.indexed(everything, "l", "v")
        world.worker.tell(everything, Target("x", "n", "east", "told", priority=2, after=1.0))
        await eventually_said(service, "due")
        [told] = service.streams[-1].due.values()
        assert set_fields(told, {})["reclock.reconciler.v1.DueKey"] == names(pb.DueKey.DESCRIPTOR)
        async with Queues(reconciler=service.address, kubeconfig=world.fleet.kubeconfig) as queues:
            await queues.list("everything")
            await queues.update("east", weight=2.0, cap=3, paused=True)
            async for _ in queues.watch():
                break
        service.break_streams()
        await service.worker(after=1)
        await eventually_said(service, "heartbeat")
        await world.worker.stop()
        said = {one.WhichOneof("message") for stream in service.streams for one in stream.said}

    assert said == names(pb.WorkRequest.DESCRIPTOR)
    offered = {
        f"/{one.full_name}/{method.name}"
        for one in pb.DESCRIPTOR.services_by_name.values() for method in one.methods
    }  # fmt: skip
    assert rpcs == offered


async def eventually_said(service: FakeService, kind: str) -> None:
    stream = service.streams[-1]
    while all(one.WhichOneof("message") != kind for one in stream.said):
        await service._changed.wait()


async def test_every_answer_of_work_is_understood() -> None:
    async with FakeFleet() as fleet, reclock.Fleet.connect(fleet.kubeconfig) as client:
        settings = reclock.Settings(kubeconfig=fleet.kubeconfig)
        channel = grpc.aio.insecure_channel("127.0.0.1:1")
        session = Session(everything, channel, client, settings, "me")
        assert set(session._answers) == names(pb.WorkResponse.DESCRIPTOR)
        await channel.close()


def test_queue_updates_can_say_everything() -> None:
    allowed = names(pb.UpdateQueueRequest.DESCRIPTOR) - AMONG_REPLICAS
    assert set(inspect.signature(Queues.update).parameters) - {"self"} == allowed


def test_all_that_is_offered_can_be_had() -> None:
    assert all(getattr(reclock, name) is not None for name in reclock.__all__)
    assert {name for module in reclock._HOME.values() for name in module} == set(reclock.__all__) - {"__version__"}
