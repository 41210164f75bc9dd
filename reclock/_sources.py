"""What a controller watches, and which requests an object makes; and how that is said to the service."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from reclock._informer import Object
from reclock._resource import CLUSTERS, Resource
from reclock.reconciler.v1 import reconciler_pb2 as pb


class On(Enum):
    """On which clusters something is."""

    MEMBERS = pb.SCOPE_MEMBERS
    """The members that the controller's `where` selects."""
    HOST = pb.SCOPE_HOST
    """The host only (cluster "")."""
    ALL = pb.SCOPE_ALL
    """Both."""


class Changed(Enum):
    """A part of an object's metadata."""

    GENERATION = pb.CHANGE_GENERATION
    """The spec, of types that have a status."""
    LABELS = pb.CHANGE_LABELS
    ANNOTATIONS = pb.CHANGE_ANNOTATIONS
    FINALIZERS = pb.CHANGE_FINALIZERS
    OWNERS = pb.CHANGE_OWNERS


@dataclass(frozen=True, kw_only=True)
class Predicates:
    """Which events count, decided where the objects are watched; by default all."""

    changes: Sequence[Changed] = ()
    """An update counts when one of these changed; any update when empty. One that begins a deletion always does."""
    created: bool = True
    """Whether creations count; they include what is there when a watch begins."""
    updated: bool = True
    deleted: bool = True


@dataclass(frozen=True)
class Owner:
    """The request is for the owner: any, or of one `kind` ("Deployment", or "apps/Deployment" with its API group)."""

    kind: str = ""
    any_owner: bool = False
    """Owners that are not the controller count too."""
    cluster_scoped: bool = False
    """The owner's kind is cluster-scoped."""


@dataclass(frozen=True)
class Label:
    """The request is for what the label's value names: `name` or `namespace/name`."""

    key: str
    to_host: bool = False
    """The request is for the host, not for the object's cluster."""
    cluster_scoped: bool = False


@dataclass(frozen=True)
class Annotation:
    """The request is for what the annotation's value names; several values are separated by commas."""

    key: str
    to_host: bool = False
    cluster_scoped: bool = False


@dataclass(frozen=True)
class Field:
    """The request is for what a field names, for example `spec.volumes[*].configMap.name`."""

    path: str
    to_host: bool = False
    cluster_scoped: bool = False


@dataclass(frozen=True)
class Target:
    """A request that an object makes."""

    name: str
    namespace: str = ""
    cluster: str | None = None
    """"" is the host; None the object's own cluster."""
    source: str = ""
    """Name of the `For`, with several of them; for `Worker.tell` that of the `Channel`."""
    priority: int | None = None
    after: float = 0.0
    """Seconds until it is due; for `Worker.tell`."""


@dataclass(frozen=True)
class Seen:
    """An object that a mapper is asked about."""

    cluster: str
    object: Object
    """apiVersion, kind and metadata, or all of it with `whole_object`."""
    deleted: bool
    """It is gone; this is its last state."""


Mapper: TypeAlias = Callable[[Seen], Sequence[Target] | Awaitable[Sequence[Target]]]
"""Says which requests an object makes. Plain mappers run in the event loop and must not block."""
By: TypeAlias = Owner | Label | Annotation | Field | Mapper


@dataclass(frozen=True, kw_only=True)
class _Source:
    labels: str = ""
    """Label selector, applied where the objects are watched."""
    fields: str = ""
    """Field selector, as the resource's API server allows."""
    namespaces: Sequence[str] = ()
    """Namespaces to watch; all when empty."""
    on: On | None = None
    """Where to watch; where the controller acts when None."""
    predicates: Predicates = Predicates()
    name: str = ""
    """Name of the source, needed only with several `For`."""
    optional: bool = False
    """Clusters that lack the resource are no error, not even when all do."""
    priority: int = 0
    """Priority of its requests, -32767 to 32767; first lists come in at this minus 100."""


@dataclass(frozen=True)
class For(_Source):
    """Objects that are requests themselves."""

    resource: str | Resource


@dataclass(frozen=True)
class Owns(_Source):
    """Objects whose controller owner is the request."""

    resource: str | Resource
    kind: str = ""
    """Kind of owners that count, as in `Owner`; any when empty."""
    target: str = ""
    """Name of the `For` whose requests this makes, with several of them."""


@dataclass(frozen=True)
class Watch(_Source):
    """Other objects whose changes make requests: by owner, label, annotation, field, or as a function says."""

    resource: str | Resource
    by: By
    target: str = ""
    whole_object: bool = False
    """Give a mapper the whole object, not only its metadata."""


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Requests that the worker tells of by itself (`Worker.tell`), from whatever it watches: nothing is watched for it.

    They are queued, ordered, leased, retried and handed over like all others. See `tells` of `controller`.
    """

    name: str = ""
    """Name of the source, needed with several; requests carry it where there is no `target`."""
    target: str = ""
    """Name of the `For` whose requests this makes."""
    priority: int = 0
    """Priority of its requests; those that `tells` says come in at this minus 100."""


FLEET = For(CLUSTERS, on=On.HOST, name="cluster")
"""The clusters themselves: joins, changes and leaves are requests of cluster "" and source "cluster", named as the cluster."""

Source: TypeAlias = For | Owns | Watch | Channel
NO_RESOURCE = Resource("", "", "")
"""That of requests of a `Channel`: they are for what the worker takes them for."""
INITIAL = -100
"""Added to the priority of what is told of a cluster as a whole."""


@dataclass(frozen=True, kw_only=True)
class Index:
    """Makes objects findable by a value over all clusters, in the service: `request.fleet_index(…)`.

    One of `label`, `annotation` and `path` (as in `Field`). "owner", by uid, is always there.
    """

    name: str
    source: str = ""
    """Name of the source, or its place among them ("0", "1", …); all when empty."""
    label: str = ""
    annotation: str = ""
    path: str = ""


def encode(source: Source) -> pb.Source:
    """The source as the protocol has it."""
    if isinstance(source, Channel):
        return pb.Source(name=source.name, target=source.target, priority=source.priority, channel=pb.Channel())
    resource = Resource.of(source.resource)
    made = pb.Source(
        group=resource.group, version=resource.version, resource=resource.plural,
        label_selector=source.labels, field_selector=source.fields, namespaces=source.namespaces,
        scope=source.on.value if source.on else pb.SCOPE_UNSPECIFIED, name=source.name,
        optional=source.optional, priority=source.priority,
        target="" if isinstance(source, For) else source.target,
    )  # fmt: skip
    if source.predicates != Predicates():
        made.predicates.CopyFrom(_predicates(source.predicates))
    if isinstance(source, For):
        made.for_object.SetInParent()
    elif isinstance(source, Owns):
        made.by_owner.CopyFrom(_owner(Owner(source.kind)))
    else:
        _set_by(made, source)
    return made


def _predicates(given: Predicates) -> pb.Predicates:
    return pb.Predicates(
        changes=[change.value for change in given.changes], ignore_created=not given.created,
        ignore_updated=not given.updated, ignore_deleted=not given.deleted,
    )  # fmt: skip


def _owner(by: Owner) -> pb.ByOwner:
    group, _, kind = by.kind.rpartition("/")
    return pb.ByOwner(kind=kind, group=group, any_owner=by.any_owner, cluster_scoped=by.cluster_scoped)


def _set_by(made: pb.Source, source: Watch) -> None:
    by = source.by
    if isinstance(by, Owner):
        made.by_owner.CopyFrom(_owner(by))
    elif isinstance(by, Label):
        made.by_label.CopyFrom(pb.ByLabel(key=by.key, naming=_naming(by)))
    elif isinstance(by, Annotation):
        made.by_annotation.CopyFrom(pb.ByAnnotation(key=by.key, naming=_naming(by)))
    elif isinstance(by, Field):
        made.by_field.CopyFrom(pb.ByField(path=by.path, naming=_naming(by)))
    else:
        made.by_worker.CopyFrom(pb.ByWorker(whole_object=source.whole_object))


def _naming(by: Label | Annotation | Field) -> pb.Naming:
    return pb.Naming(to_host=by.to_host, cluster_scoped=by.cluster_scoped)


def encode_index(index: Index) -> pb.Index:
    """The index as the protocol has it. ValueError unless exactly one thing is indexed."""
    given = {key: value for key in ("label", "annotation", "path") if (value := getattr(index, key))}
    if len(given) != 1:
        raise ValueError(f"index {index.name!r}: give one of label, annotation and path")
    return pb.Index(name=index.name, source=index.source, **given)


async def mapped(mapper: Any, message: pb.Map, seen: Seen) -> pb.Mapped:
    """Ask a mapper, and answer the service."""
    answer = mapper(seen)
    targets = await answer if inspect.isawaitable(answer) else answer
    return pb.Mapped(id=message.id, keys=[_key(target) for target in targets])


def _key(target: Target) -> pb.MappedKey:
    key = pb.MappedKey(namespace=target.namespace, name=target.name, source=target.source)
    if target.cluster is not None:
        key.cluster = target.cluster
    if target.priority is not None:
        key.priority = target.priority
    return key
