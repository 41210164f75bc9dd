"""Which events of a source count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


@dataclass(frozen=True, slots=True)
class Predicates:
    """An update counts when one of `changes` (fields of the metadata) changed, any when there are none."""

    changes: tuple[str, ...] = ()
    created: bool = True
    updated: bool = True
    deleted: bool = True

    def passes(self, event: str, obj: dict[str, Any], old: dict[str, Any] | None) -> bool:
        """Whether the event makes requests. A first deletion timestamp always does: finalizers wait for it."""
        if event == ADDED:
            return self.created
        if event == DELETED:
            return self.deleted
        if not self.updated:
            return False
        if not self.changes or old is None:
            return True
        now, before = obj["metadata"], old["metadata"]
        if now.get("deletionTimestamp") and not before.get("deletionTimestamp"):
            return True
        return any(now.get(field) != before.get(field) for field in self.changes)
