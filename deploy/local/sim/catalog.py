"""Which types a cluster serves: the built-in ones and those of its CustomResourceDefinitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from deploy.local.sim.builtin import BUILTIN
from deploy.local.sim.types import ResourceType

Key = tuple[str, str, str]

_BUILTIN: dict[Key, ResourceType] = {(t.group, t.version, t.plural): t for t in BUILTIN}


class Catalog:
    """Lookups by group, version and plural. The built-in table is shared by all clusters; `without` hides some of it."""

    def __init__(self, without: Iterable[str] = ()) -> None:
        self._custom: dict[Key, ResourceType] = {}
        self._hidden = frozenset(without)
        self.generation = 0
        """Counts changes of what is served."""

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        found = _BUILTIN.get((group, version, plural))
        if found is None:
            return self._custom.get((group, version, plural))
        return None if self._hidden and found.collection in self._hidden else found

    def types(self) -> Iterator[ResourceType]:
        """All of them, built-in first."""
        for found in _BUILTIN.values():
            if found.collection not in self._hidden:
                yield found
        yield from self._custom.values()

    def by_kind(self, api_version: str, kind: str) -> ResourceType | None:
        """The type of objects that call themselves so."""
        for found in self.types():
            if found.kind == kind and found.group_version == api_version:
                return found
        return None

    def by_collection(self, collection: str) -> ResourceType | None:
        """The first type that is stored there."""
        return next((t for t in self.types() if t.collection == collection), None)

    def define(self, definition: str, types: Iterable[ResourceType]) -> None:
        """Serves these in place of all that `definition` (a CRD's name) served before."""
        self._custom = {key: t for key, t in self._custom.items() if t.definition != definition}
        for found in types:
            self._custom[(found.group, found.version, found.plural)] = found
        self.generation += 1

    def hide(self, collection: str, hidden: bool = True) -> None:
        """Stops (or starts again) serving a built-in type."""
        self._hidden = self._hidden | {collection} if hidden else self._hidden - {collection}
        self.generation += 1
