"""A member's bytes as clients see them: fleet version, cluster annotation, owners' and events' uids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _fastpath.listing import Item
from services.aggregator.reads.codec import AnyMeta, splice_object
from services.aggregator.reads.fields import UID_FIELDS
from services.aggregator.types import Aggregated

if TYPE_CHECKING:
    from services.aggregator.owners import Owners


# Numbers of the fields of an Event's message that refer to objects: involvedObject and related, regarding and related.
REFERENCES = {"": (2, 13), "events.k8s.io": (8, 9)}


class Presenter:
    """One per aggregated resource. `present` is the hot path: synchronous, one copy of the object."""

    def __init__(self, owners: Owners, aggregated: Aggregated) -> None:
        self._owners = owners
        self._names: dict[str, bytes] = {}
        self._references = REFERENCES.get(aggregated.group, ()) if aggregated.resource == "events" else ()

    def present(
        self, cluster: str, buf: bytes, meta: AnyMeta, version: int, end: int = -1
    ) -> bytes | None:
        """The object (without what stands around it in `buf`); None when `resolve` is needed first."""
        owners: Mapping[str, str | None] | None = None
        if meta.owners:
            owners = self._owners.outgoing(cluster, [owner.uid for owner in meta.owners])
            if owners is None:
                return None
        return self._splice(cluster, buf, meta, version, end, owners)

    def present_all(self, clusters: Sequence[str], items: list[Item], versions: Sequence[int]) -> list[bytes | None]:
        """`present` of items whose sources are these clusters."""
        out: list[bytes | None] = []
        owners: Mapping[str, str | None] | None = None
        source, seen = -1, ()
        for item, version in zip(items, versions, strict=True):
            refs = item.meta.owners
            if refs is not seen or item.source != source:
                # Objects of one owner stand side by side, as a rule, and share their references.
                owners = self._owners.outgoing(clusters[item.source], [one.uid for one in refs]) if refs else {}
                source, seen = item.source, refs
            body = None
            if owners is not None:
                body = self._splice(clusters[item.source], item.raw, item.meta, version, item.end, owners)
            out.append(body)
        return out

    async def resolve(
        self, cluster: str, buf: bytes, meta: AnyMeta, version: int, end: int = -1
    ) -> bytes:
        """As `present`, asking the member about owners that are not known yet."""
        owners = await self._owners.resolve(cluster, meta.owners, meta.namespace)
        return self._splice(cluster, buf, meta, version, end, owners)

    async def show(self, cluster: str, buf: bytes, meta: AnyMeta, version: int, end: int = -1) -> bytes:
        """`present`, or `resolve` where it must be."""
        done = self.present(cluster, buf, meta, version, end)
        return done if done is not None else await self.resolve(cluster, buf, meta, version, end)

    def shown_values(self, cluster: str, values: dict[str, str]) -> dict[str, str]:
        """Selectable fields as clients see them: uids of copies are the host objects'."""
        uids = [field for field in UID_FIELDS if values.get(field)]
        if not uids:
            return values
        return {**values, **{field: self._owners.object_uid(cluster, values[field]) for field in uids}}

    def _splice(
        self, cluster: str, buf: bytes, meta: AnyMeta, version: int, end: int,
        owners: Mapping[str, str | None] | None,
    ) -> bytes:  # fmt: skip
        name = self._names.get(cluster)
        if name is None:
            name = self._names[cluster] = cluster.encode()
        uids: Any = self._owners.object_uids(cluster) if self._references else None
        return splice_object(buf, meta, b"%d" % version, name, owners or None, end, uids or None, self._references)
