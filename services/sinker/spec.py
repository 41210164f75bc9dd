"""A `Sink` of reclock.dev/v1alpha1, decoded: which objects, from where, to which clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reclock import Object, Resource
from services.common.errors import bad_request
from services.common.kube.labels import LabelSelector, parse_labels

SINKS = Resource("reclock.dev", "v1alpha1", "sinks")
NAME_MAX = 63 - len("sink-")
_TERMS = {"In": "{key} in ({values})", "NotIn": "{key} notin ({values})", "Exists": "{key}", "DoesNotExist": "!{key}"}


def selector_text(selector: Mapping[str, Any] | None) -> str:
    """A `metav1.LabelSelector` as API servers take it in a query; empty for everything."""
    terms = [f"{key}={value}" for key, value in ((selector or {}).get("matchLabels") or {}).items()]
    for one in (selector or {}).get("matchExpressions") or ():
        terms.append(_TERMS[one["operator"]].format(key=one["key"], values=",".join(one.get("values") or ())))
    return ",".join(terms)


@dataclass(frozen=True)
class Spec:
    """What a Sink asks for. `source` is a cluster's name, "" for the host."""

    name: str
    uid: str
    generation: int
    resource: Resource
    source: str = ""
    objects: LabelSelector = field(default_factory=LabelSelector)
    namespaces: tuple[str, ...] = ()
    clusters: LabelSelector = field(default_factory=LabelSelector)
    include_host: bool = False
    create_namespaces: bool = True

    @classmethod
    def named(cls, sink: Object) -> Spec:
        """Whose copies, and of which type: all that it takes to say something of a Sink, or to remove what it made."""
        metadata, spec = sink["metadata"], sink["spec"]
        resource = Resource(spec.get("group") or "", spec["version"], spec["resource"])
        return cls(metadata["name"], metadata["uid"], int(metadata.get("generation") or 0), resource)

    @classmethod
    def of(cls, sink: Object) -> Spec:
        """Decode. StatusError, in Kubernetes' words, for a selector that is none, or a name that is too long."""
        spec = sink["spec"]
        if len(sink["metadata"]["name"]) > NAME_MAX:
            raise bad_request(f"its name is too long for its controller, sink-…: allowed are {NAME_MAX} characters")
        return replace(
            cls.named(sink),
            source=spec.get("from") or "", objects=parse_labels(selector_text(spec.get("selector"))),
            namespaces=tuple(spec.get("namespaces") or ()), clusters=parse_labels(selector_text(spec.get("clusters"))),
            include_host=bool(spec.get("includeHost")), create_namespaces=bool(spec.get("createNamespaces", True)),
        )  # fmt: skip

    def chooses(self, obj: Object | None) -> bool:
        """Whether an object of the source cluster is to be in the others. What is a copy itself never is, nor what goes."""
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            return False
        labels = obj["metadata"].get("labels") or {}
        inside = not self.namespaces or obj["metadata"].get("namespace", "") in self.namespaces
        return inside and "reclock.dev/sink" not in labels and self.objects.matches(labels)

    def takes(self, cluster: str, labels: Mapping[str, str]) -> bool:
        """Whether a cluster gets copies ("" is the host, whose labels do not matter)."""
        if cluster == self.source:
            return False
        return self.include_host if not cluster else self.clusters.matches(labels)
