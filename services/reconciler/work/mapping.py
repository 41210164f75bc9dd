"""How an object of a source maps to requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from services.reconciler.work.paths import Path

Obj = dict[str, Any]

HOST = ""
_NAME = re.compile(r"[^/%\s\x00-\x1f]{1,253}")


class Target(NamedTuple):
    """One request: what to look at, where. The source tells several types of one controller apart."""

    cluster: str
    namespace: str
    name: str
    source: str = ""

    @property
    def key(self) -> str:
        """Its key in the fair queue, which reads the namespace before the first slash."""
        return f"{self.namespace}/{self.source}/{self.name}"


def target_of(cluster: str, key: str) -> Target:
    """The inverse of `Target.key`."""
    namespace, source, name = key.split("/")
    return Target(cluster, namespace, name, source)


def is_name(text: str) -> bool:
    """Whether `text` can be the name of an object (what fits in a path)."""
    return text not in (".", "..") and _NAME.fullmatch(text) is not None


class Naming(NamedTuple):
    """How a value names a request."""

    to_host: bool = False
    cluster_scoped: bool = False

    def targets(self, cluster: str, obj: Obj, values: Iterator[str] | list[str]) -> Iterator[Target]:
        """The requests that `values` name; what is no name makes none."""
        own = obj["metadata"].get("namespace", "")
        for value in values:
            namespace, slash, name = value.strip().rpartition("/")
            if self.cluster_scoped:
                if slash:
                    continue
                namespace = ""
            elif not slash:
                namespace = own
            if is_name(name) and (not namespace or is_name(namespace)):
                yield Target(HOST if self.to_host else cluster, namespace, name)


@dataclass(frozen=True, slots=True)
class ForObject:
    """The object itself."""

    def targets(self, cluster: str, obj: Obj) -> Iterator[Target]:
        """Requests that `obj` of `cluster` makes."""
        metadata = obj["metadata"]
        yield Target(cluster, metadata.get("namespace", ""), metadata["name"])


@dataclass(frozen=True, slots=True)
class ByOwner:
    """Its owners; its controller only, unless `any_owner`."""

    kind: str = ""
    group: str = ""
    any_owner: bool = False
    cluster_scoped: bool = False

    def targets(self, cluster: str, obj: Obj) -> Iterator[Target]:
        """Requests that `obj` of `cluster` makes."""
        namespace = "" if self.cluster_scoped else obj["metadata"].get("namespace", "")
        for owner in obj["metadata"].get("ownerReferences") or ():
            if not self.any_owner and not owner.get("controller"):
                continue
            group = owner["apiVersion"].rpartition("/")[0]
            if not self.kind or (owner["kind"] == self.kind and group == self.group):
                yield Target(cluster, namespace, owner["name"])


@dataclass(frozen=True, slots=True)
class ByText:
    """What a label (`where` = "labels") or an annotation of it names; an annotation may name several."""

    where: str
    name: str
    naming: Naming

    def targets(self, cluster: str, obj: Obj) -> Iterator[Target]:
        """Requests that `obj` of `cluster` makes."""
        value = (obj["metadata"].get(self.where) or {}).get(self.name)
        if value is not None:
            yield from self.naming.targets(cluster, obj, value.split(",") if self.where == "annotations" else [value])


@dataclass(frozen=True, slots=True)
class ByField:
    """What the values at a path name."""

    path: Path
    naming: Naming

    def targets(self, cluster: str, obj: Obj) -> Iterator[Target]:
        """Requests that `obj` of `cluster` makes."""
        return self.naming.targets(cluster, obj, self.path.values(obj))


@dataclass(frozen=True, slots=True)
class ByWorker:
    """What a worker says; it is asked elsewhere."""

    whole_object: bool = False

    def targets(self, cluster: str, obj: Obj) -> Iterator[Target]:
        """None from here."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Channel:
    """Nothing is watched; workers say what is due."""

    def targets(self, cluster: str, obj: Obj) -> Iterator[Target]:
        """None from here."""
        return iter(())


Mapping = ForObject | ByOwner | ByText | ByField | ByWorker | Channel


def to_other_clusters(mapping: Mapping) -> bool:
    """Whether its requests may be for another cluster than the object's."""
    return isinstance(mapping, ByWorker) or (isinstance(mapping, ByText | ByField) and mapping.naming.to_host)
