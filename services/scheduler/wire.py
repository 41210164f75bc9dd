"""Between the scheduler's own values and protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from google.protobuf.duration_pb2 import Duration

from reclock.scheduler.v1 import scheduler_pb2 as pb
from services.common.kube import quantity
from services.common.kube.times import parse_time
from services.scheduler.ledger import OwnerKey
from services.scheduler.member import Ask, PodSets
from services.scheduler.shape import Shape, make_shape
from services.scheduler.workload import Workload


def pod_sets_to_proto(pod_sets: PodSets) -> list[pb.PodSet]:
    """Write shapes and counts; equal shapes are read back as the same shape."""
    return [
        pb.PodSet(
            name=str(number), count=count, requests=quantity.render_all(dict(shape.requests)),
            constraints=shape_constraints(shape),
        )
        for number, (shape, count) in enumerate(pod_sets)
    ]  # fmt: skip


def shape_constraints(shape: Shape) -> bytes:
    """The rules part of a shape's key."""
    _, rules = msgspec.json.decode(shape.key)
    return str(rules).encode()


def pod_sets_from_proto(messages: Iterable[pb.PodSet]) -> list[tuple[Shape, int]]:
    """Read shapes and counts; ValueError names what is malformed."""
    found = []
    for message in messages:
        try:
            rules = msgspec.json.decode(message.constraints) if message.constraints else {}
        except msgspec.DecodeError as error:
            raise ValueError(f"pod set {message.name!r}: constraints are no JSON: {error}") from error
        if not isinstance(rules, dict):
            raise ValueError(f"pod set {message.name!r}: constraints are no JSON object")
        if message.count < 0:
            raise ValueError(f"pod set {message.name!r}: count is below 0")
        found.append((make_shape(quantity.parse_all(message.requests), rules), message.count))
    return found


def owner_to_proto(owner: OwnerKey) -> pb.OwnerRef:
    """Write whose pods."""
    return pb.OwnerRef(kind=owner.kind, namespace=owner.namespace, name=owner.name)


def owner_from_proto(message: pb.OwnerRef) -> OwnerKey:
    """Read whose pods."""
    return OwnerKey(message.namespace, message.kind, message.name)


def ask_to_proto(ask: Ask, cluster: str, ttl: float, fleet_id: str = "") -> pb.ReserveRequest:
    """Write what is asked of a member."""
    duration = Duration()
    duration.FromNanoseconds(int(ttl * 1e9))
    return pb.ReserveRequest(
        id=ask.id, attempt=ask.attempt, cluster=cluster, ttl=duration, owner=owner_to_proto(ask.owner),
        pod_sets=pod_sets_to_proto(ask.pod_sets), partial=ask.partial, placed=ask.placed,
        at_most_once=ask.at_most_once, fleet_id=fleet_id,
    )  # fmt: skip


def ask_from_proto(message: pb.ReserveRequest) -> Ask:
    """Read what is asked of a member; ValueError names what is wrong."""
    if not message.id:
        raise ValueError("id is missing")
    return Ask(
        message.id, message.attempt, owner_from_proto(message.owner), pod_sets_from_proto(message.pod_sets),
        message.partial, message.at_most_once, message.placed, message.fleet_id,
    )  # fmt: skip


def workload_to_proto(workload: Workload) -> pb.Workload:
    """Write a Workload of the host."""
    ref = workload.owner_ref
    spec: Mapping[str, Any] = workload.obj.get("spec") or {}
    placement = workload.placement.clusters if workload.placement else {}
    return pb.Workload(
        ref=pb.WorkloadRef(namespace=workload.key.namespace, name=workload.key.name),
        owner=pb.OwnerRef(
            api_version=ref.get("apiVersion") or "", kind=workload.owner.kind, namespace=workload.key.namespace,
            name=workload.owner.name, uid=ref.get("uid") or "",
        ),
        pod_sets=[
            pb.PodSet(
                name=item.get("name") or "", count=item.get("count") or 0,
                requests={name: str(value) for name, value in (item.get("requests") or {}).items()},
                constraints=msgspec.json.encode(item.get("constraints") or {}),
            )
            for item in spec.get("podSets") or ()
        ],
        suspend=workload.suspended,
        policy=(workload.obj.get("status") or {}).get("policy") or "",
        placements=[pb.Placement(cluster=name, replicas=count) for name, count in sorted(placement.items())],
        attempts=workload.attempts,
        conditions=[_condition(item) for item in workload.conditions],
        resource_version=workload.version,
    )  # fmt: skip


def _condition(item: Mapping[str, Any]) -> pb.Condition:
    message = pb.Condition(
        type=item.get("type") or "", status=item.get("status") or "", reason=item.get("reason") or "",
        message=item.get("message") or "",
    )  # fmt: skip
    moment: datetime | None = parse_time(item.get("lastTransitionTime"))
    if moment is not None:
        message.last_transition.FromDatetime(moment)
    return message
