"""What a type of objects is to the simulated API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, eq=False)
class ResourceType:
    """A resource in one API version. `storage` names its collection: versions and aliases of a type share one."""

    group: str
    version: str
    plural: str
    kind: str
    singular: str = ""
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[str, ...] = ()
    has_generation: bool = False
    custom: bool = False
    """From a CustomResourceDefinition: pruned and validated by its schema, no strategic merge patch."""
    returns_deleted: bool = False
    """A deletion that takes effect at once answers with the object instead of a Status."""
    unconditional_update: bool = True
    """An update without resourceVersion is taken."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Selectable field -> dotted path in the object, beyond metadata.name and metadata.namespace."""
    storage: str = ""
    schema: Mapping[str, Any] | None = None
    columns: tuple[Mapping[str, Any], ...] = ()
    """additionalPrinterColumns of a CRD's version."""
    scale: Mapping[str, str] | None = None
    to_storage: Callable[[Object], Object] | None = None
    from_storage: Callable[[Object], Object] | None = None
    definition: str = ""
    """The CRD's name, for custom types."""

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def collection(self) -> str:
        """The name under which the store keeps its objects."""
        return self.storage or (f"{self.plural}.{self.group}" if self.group else self.plural)

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    def prefix(self) -> bytes:
        """The start of this type's JSON objects, to be put in place of the `{` of the stored bytes."""
        if self.custom:
            return f'{{"apiVersion":"{self.group_version}","kind":"{self.kind}",'.encode()
        return f'{{"kind":"{self.kind}","apiVersion":"{self.group_version}",'.encode()


def path_value(obj: Mapping[str, Any], path: str) -> str:
    """The value at a dotted path as field selectors compare it; "" when there is none."""
    here: Any = obj
    for part in path.split("."):
        if not isinstance(here, Mapping):
            return ""
        here = here.get(part)
    if here is None:
        return ""
    if isinstance(here, bool):
        return "true" if here else "false"
    return str(here)
