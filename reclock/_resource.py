"""Names of Kubernetes resources, and their paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

_PART = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource by group ("" is core), version and plural: `Resource("apps", "v1", "deployments")`."""

    group: str
    version: str
    plural: str

    @classmethod
    def of(cls, name: str | Resource) -> Resource:
        """From "v1/configmaps" or "apps/v1/deployments". Raises ValueError for anything else."""
        if isinstance(name, Resource):
            return name
        parts = name.split("/")
        if len(parts) not in (2, 3) or not all(_PART.fullmatch(part) for part in parts):
            raise ValueError(
                f'{name!r} names no resource: write "v1/configmaps" or "apps/v1/deployments" (group/version/plural)'
            )
        return cls(parts[0] if len(parts) == 3 else "", parts[-2], parts[-1])

    def __str__(self) -> str:
        return f"{self.group}/{self.version}/{self.plural}" if self.group else f"{self.version}/{self.plural}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The API path of a collection or object; without a namespace that of a cluster-scoped one, or of all."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        rest = "".join(f"/{quote(part, safe='')}" for part in (name, subresource) if part)
        return f"{base}{inside}/{self.plural}{rest}"


CLUSTERS = Resource("reclock.dev", "v1alpha1", "clusters")
"""The fleet's clusters, as objects on the host."""


def resource_of(obj: dict[str, object], plural: str = "") -> Resource:
    """The resource of an object by its apiVersion and kind, its plural guessed as Kubernetes' own types form it.

    For types whose plural is irregular give `plural`. Raises ValueError when the object does not say its type.
    """
    api_version, kind = str(obj.get("apiVersion") or ""), str(obj.get("kind") or "")
    if not api_version or not kind:
        raise ValueError("the object has no apiVersion and kind")
    group, _, version = api_version.rpartition("/")
    return Resource(group, version, plural or _plural(kind.lower()))


def _plural(kind: str) -> str:
    if kind == "endpoints":
        return kind
    if kind.endswith(("s", "x", "z", "ch", "sh")):
        return f"{kind}es"
    if kind.endswith("y") and kind[-2:-1] not in "aeiou":
        return f"{kind[:-1]}ies"
    return f"{kind}s"
