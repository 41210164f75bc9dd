"""Who owns whom, by uid: kept up with each change, for controllers and garbage collection."""

from __future__ import annotations

from typing import Any

from deploy.local.sim.objects import metadata
from deploy.local.sim.store import Change, State

Place = tuple[str, str]
"""(collection, key)."""


def owner_references(state: State) -> list[dict[str, Any]]:
    """Decodes only the metadata, and only when there are any."""
    if b'"ownerReferences":' not in state.raw:
        return []
    return metadata(state).get("ownerReferences") or []


class Owners:
    """Owner's uid -> places of the objects that name it. Cost: O(references) a change."""

    def __init__(self) -> None:
        self._dependents: dict[str, dict[Place, None]] = {}

    def follow(self, collection: str, change: Change) -> None:
        place = (collection, change.state.key)
        before = owner_references(change.before) if change.before is not None else []
        now = owner_references(change.state) if change.kind != "DELETED" else []
        if before == now:
            return
        for owner in before:
            found = self._dependents.get(owner["uid"])
            if found is not None:
                found.pop(place, None)
                if not found:
                    del self._dependents[owner["uid"]]
        for owner in now:
            self._dependents.setdefault(owner["uid"], {})[place] = None

    def dependents(self, uid: str, collection: str = "") -> list[Place]:
        """Places of the objects that name `uid` an owner, oldest first; of one collection when it is given."""
        found = self._dependents.get(uid, ())
        return [place for place in found if collection in ("", place[0])]

    def clear(self) -> None:
        self._dependents.clear()
