"""The sources and indexes of a registration."""

from __future__ import annotations

import re
from collections import Counter

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.kube.resource import CLUSTERS, Resource
from services.reconciler.work import paths
from services.reconciler.work.mapping import (
    ByField,
    ByOwner,
    ByText,
    ByWorker,
    Channel,
    ForObject,
    Mapping,
    Naming,
)
from services.reconciler.work.predicates import Predicates
from services.reconciler.work.spec import (
    NAME,
    PRIORITY,
    Checker,
    IndexSpec,
    SourceSpec,
    takes_host,
    takes_members,
)

OWNER = "owner"
"""The index that is always there."""
MAX_SOURCES = 64
MAX_INDEXES = 64
CHANGES = {
    pb.CHANGE_GENERATION: "generation", pb.CHANGE_LABELS: "labels", pb.CHANGE_ANNOTATIONS: "annotations",
    pb.CHANGE_FINALIZERS: "finalizers", pb.CHANGE_OWNERS: "ownerReferences",
}  # fmt: skip
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def decode_sources(check: Checker, register: pb.Register, scope: int) -> tuple[SourceSpec, ...]:
    """All sources; what is wrong is told to `check`."""
    if not 1 <= len(register.sources) <= MAX_SOURCES:
        check.say("sources", f"{len(register.sources)} of them: allowed is 1 to {MAX_SOURCES}")
    names = [source.name for source in register.sources if source.name]
    for name, number in Counter(names).items():
        if number > 1:
            check.say("sources", f"{number} are named {name!r}: names are unique")
    whole_indexes = {index.source for index in register.indexes if index.WhichOneof("by") == "path"}
    found = [
        _source(check, f"sources[{place}]", place, source, register.protocol_version, scope, whole_indexes)
        for place, source in enumerate(register.sources)
    ]
    subjects = [source.request_source for source in found if isinstance(source.to, ForObject)]
    for place, source in enumerate(found):
        if subjects and not _names_freely(source, register.sources[place]) and source.request_source not in subjects:
            allowed = ", ".join(map(repr, subjects))
            check.say(f"sources[{place}].target", f"{source.request_source!r}: no ForObject source has that name; there are: {allowed}")
    return tuple(found)


def _names_freely(source: SourceSpec, given: pb.Source) -> bool:
    """Whether its requests need not be those of a ForObject source."""
    return isinstance(source.to, ForObject | ByWorker) or (source.is_channel and not given.target)


def _source(
    check: Checker, path: str, place: int, source: pb.Source, version: int, scope: int, whole_indexes: set[str]
) -> SourceSpec:
    ident = source.name or str(place)
    to = _mapping(check, path, source, version)
    resource = _no_resource(check, path, source) if isinstance(to, Channel) else _resource(check, path, source)
    for key in ("name", "target"):
        value = getattr(source, key)
        if value and not NAME.fullmatch(value):
            check.say(f"{path}.{key}", f"{value!r}: 1 to 63 of a-z, 0-9, '-', '.'")
    check.selector(f"{path}.label_selector", source.label_selector)
    check.between(f"{path}.priority", source.priority, -PRIORITY, PRIORITY)
    for namespace in source.namespaces:
        if not _NAMESPACE.fullmatch(namespace):
            check.say(f"{path}.namespaces", f"{namespace!r} is no name of a namespace")
    spec = SourceSpec(
        ident, resource, to, source.label_selector, source.field_selector, tuple(sorted(set(source.namespaces))),
        _scope(check, path, source, scope), _predicates(check, path, source),
        source.name if isinstance(to, ForObject) else source.target or (source.name if isinstance(to, Channel) else ""), source.optional, source.priority,
        isinstance(to, ByField) or (isinstance(to, ByWorker) and to.whole_object)
        or bool({"", ident} & whole_indexes),
    )  # fmt: skip
    if spec.is_fleet:
        _check_fleet(check, path, spec)
    return spec


def _resource(check: Checker, path: str, source: pb.Source) -> Resource:
    if not _RESOURCE.fullmatch(source.resource):
        check.say(f"{path}.resource", f"{source.resource!r}: the plural, in small letters, without a subresource")
    if not _VERSION.fullmatch(source.version):
        check.say(f"{path}.version", f"{source.version!r}: a version like v1 or v1beta2")
    if source.group and not all(_RESOURCE.fullmatch(part) for part in source.group.split(".")):
        check.say(f"{path}.group", f"{source.group!r}: an API group like apps, or empty for core")
    return Resource(source.group, source.version, source.resource)


def _no_resource(check: Checker, path: str, source: pb.Source) -> Resource:
    for key in ("group", "version", "resource", "label_selector", "field_selector", "namespaces", "predicates", "scope"):
        if getattr(source, key) != getattr(pb.Source(), key):
            check.say(f"{path}.{key}", "not with channel: nothing is watched")
    return Resource("", "", "")


def _check_fleet(check: Checker, path: str, spec: SourceSpec) -> None:
    if not isinstance(spec.to, ForObject):
        check.say(f"{path}.to", f"{CLUSTERS.key} allows ForObject only")
    if spec.namespaces or spec.field_selector:
        check.say(path, f"{CLUSTERS.key} has neither namespaces nor field selectors")


def _scope(check: Checker, path: str, source: pb.Source, scope: int) -> int:
    if source.scope not in pb.Scope.values():
        check.say(f"{path}.scope", f"{source.scope} is not known; allowed: {', '.join(pb.Scope.keys())}")
    chosen = source.scope or scope
    if takes_host(chosen) and not takes_host(scope) and source.WhichOneof("to") == "for_object":
        check.say(f"{path}.scope", "requests of the host need a controller whose scope has the host")
    if takes_members(chosen) and not takes_members(scope) and source.WhichOneof("to") == "for_object":
        check.say(f"{path}.scope", "requests of members need a controller whose scope has the members")
    return chosen


def _predicates(check: Checker, path: str, source: pb.Source) -> Predicates:
    given = source.predicates
    unknown = [change for change in given.changes if change not in CHANGES]
    if unknown:
        check.say(f"{path}.predicates.changes", f"{unknown[0]} is not known; allowed: {', '.join(pb.Change.keys()[1:])}")
    changes = tuple(sorted({CHANGES[change] for change in given.changes if change in CHANGES}))
    return Predicates(changes, not given.ignore_created, not given.ignore_updated, not given.ignore_deleted)


def _naming(naming: pb.Naming) -> Naming:
    return Naming(naming.to_host, naming.cluster_scoped)


def _mapping(check: Checker, path: str, source: pb.Source, version: int) -> Mapping:
    kind = source.WhichOneof("to")
    if kind is None:
        return _old_mapping(check, path, source, version)
    if kind == "by_owner":
        owner = source.by_owner
        return ByOwner(owner.kind, owner.group, owner.any_owner, owner.cluster_scoped)
    if kind in ("by_label", "by_annotation"):
        text = source.by_label if kind == "by_label" else source.by_annotation
        if not text.key:
            check.say(f"{path}.{kind}.key", "it is empty")
        return ByText("labels" if kind == "by_label" else "annotations", text.key, _naming(text.naming))
    if kind == "by_field":
        try:
            return ByField(paths.parse(source.by_field.path), _naming(source.by_field.naming))
        except ValueError as error:
            check.say(f"{path}.by_field.path", str(error))
    if kind == "by_worker":
        return ByWorker(source.by_worker.whole_object)
    if kind == "channel":
        return Channel()
    return ForObject()


def _old_mapping(check: Checker, path: str, source: pb.Source, version: int) -> Mapping:
    """Version 0 said it with a word. A kind that is newer than this service looks as if nothing were set."""
    if source.mapping == "Owns":
        return ByOwner()
    if source.mapping != "For":
        check.say(
            f"{path}.mapping" if version == 0 else f"{path}.to",
            f"{source.mapping!r}: allowed is For or Owns" if source.mapping or version == 0
            else "set one of for_object, by_owner, by_label, by_annotation, by_field, by_worker, channel",
        )  # fmt: skip
    return ForObject()


def decode_indexes(check: Checker, register: pb.Register, sources: tuple[SourceSpec, ...]) -> tuple[IndexSpec, ...]:
    """All indexes but the one that is always there."""
    if len(register.indexes) > MAX_INDEXES:
        check.say("indexes", f"{len(register.indexes)} of them: allowed is up to {MAX_INDEXES}")
    known = {source.ident for source in sources}
    found: list[IndexSpec] = []
    for place, index in enumerate(register.indexes):
        path = f"indexes[{place}]"
        if not NAME.fullmatch(index.name):
            check.say(f"{path}.name", f"{index.name!r}: 1 to 63 of a-z, 0-9, '-', '.'")
        elif index.name == OWNER or index.name in {other.name for other in found}:
            check.say(f"{path}.name", f"{index.name!r} is there already")
        if index.source and index.source not in known:
            check.say(f"{path}.source", f"{index.source!r}: no such source; there are: {', '.join(sorted(known))}")
        kind = index.WhichOneof("by")
        if kind is None or not getattr(index, kind):
            check.say(f"{path}.by", "set one of label, annotation, path")
            continue
        parsed = None
        if kind == "path":
            try:
                parsed = paths.parse(index.path)
            except ValueError as error:
                check.say(f"{path}.path", str(error))
        found.append(IndexSpec(index.name, index.source, kind, getattr(index, kind), parsed))
    return tuple(found)
