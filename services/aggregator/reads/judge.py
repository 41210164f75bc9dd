"""What a log entry means to one watch: ADDED, MODIFIED, DELETED or nothing, as its selectors see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from _fastpath.marker import Marker
from services.aggregator.reads.query import ReadOptions

Key = tuple[str, str]
Type = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(slots=True)
class Judge:
    """Selectors of one watch, and what its client does not have although the log would say so.

    `absent` are clusters that the initial state was sent without; `unseen` objects whose ADDED was skipped.
    With terms on the payload (`spec.nodeName` and the like) `matching` is the watch's own set of keys. It began with
    all that matched at the start, but for objects of the clusters in `unsure`: those could not be told. What members were
    asked about version `asked` is not sure either where an object comes into another life of its member, which may have
    begun, unnoticed, before it answered; `doubted` are such objects whose entry was passed over.
    """

    options: ReadOptions
    namespace: str
    start: int = 0
    absent: frozenset[str] = frozenset()
    unseen: set[Key] = field(default_factory=set)
    matching: set[Key] = field(default_factory=set)
    judged: set[Key] = field(default_factory=set)
    doubted: set[Key] = field(default_factory=set)
    unsure: frozenset[str] = frozenset()
    asked: int = 0
    on_payload: bool = False
    _name: str | None = None
    plain: bool = False

    def __post_init__(self) -> None:
        self.on_payload = bool(self.options.fields.on_payload)
        self.plain = not self.options.selects and not self.namespace and not self.absent

    def begin(self, matching: Iterable[Key], *, unsure: Iterable[str] = (), asked: int = 0) -> None:
        """The keys that match at the start; those of `unsure` clusters could not be told.

        `asked` is the version that members were asked about; 0 where the client was sent just these.
        """
        self.matching = set(matching)
        self.asked = asked
        self.unsure = frozenset(unsure)

    def learn(self, matching: Iterable[tuple[Key, str]], unsure: Iterable[str]) -> None:
        """What matched at the start, with its cluster, now that some of the `unsure` clusters could be asked."""
        answered = self.unsure.difference(unsure)
        self.matching.update(key for key, cluster in matching if cluster in answered and key not in self.judged)
        self.unsure -= answered

    def selects(self, marker: Marker) -> bool:
        """Does a state match, as far as its marker can tell?"""
        if self.namespace and marker.namespace != self.namespace:
            return False
        options = self.options
        for term in options.fields.terms:
            if term.field == "metadata.name":
                if (marker.name == term.value) is not term.equal:
                    return False
            elif term.field == "metadata.namespace" and (marker.namespace == term.value) is not term.equal:
                return False
        return not options.labels or options.labels.matches(marker.labels)

    def had(self, entry: Marker, key: Key) -> bool:
        """Has the client the object that the entry changes?"""
        before = entry.before
        if before is None or key in self.unseen:
            return False
        if before.cluster in self.absent and before.fleet <= self.start:
            return False
        return self.selects(before)

    def decide(self, entry: Marker, values: Mapping[str, str] | None) -> Type | None:
        """The entry's type on this watch; None when it is not for this client.

        `values` are the payload's selectable fields, needed when `on_payload` and the object is not deleted.
        """
        if self.plain and not self.unseen:
            return None if entry.type == "HIDDEN" else entry.type
        key = (entry.namespace, entry.name)
        had = self.had(entry, key)
        matches = entry.type != "DELETED" and self.selects(entry)
        if self.on_payload:
            had, matches = self._by_payload(key, had, matches, values, known=self._known(entry, key))
        if matches:
            return "MODIFIED" if had else "ADDED"
        return "DELETED" if had else None

    def _known(self, entry: Marker, key: Key) -> bool:
        """Is it sure whether the client has the object, where it is not among the `matching`?"""
        if entry.before is None:
            return True
        return entry.before.cluster not in self.unsure and key not in self.doubted and not self._other_life(entry)

    def _other_life(self, entry: Marker) -> bool:
        """Is the entry the object's first of another life of its member, and the one before what members were asked about?"""
        before = entry.before
        return (
            before is not None and before.fleet <= self.asked
            and before.cluster == entry.cluster and before.incarnation != entry.incarnation
        )  # fmt: skip

    def _by_payload(
        self, key: Key, had: bool, matches: bool, values: Mapping[str, str] | None, *, known: bool
    ) -> tuple[bool, bool]:
        matches = matches and values is not None and self.options.fields.on_payload.matches(values)
        if key in self.matching:
            return had, matches
        if known or key in self.judged:
            return False, matches
        # Its set could not be rebuilt: the client may have the object. It is told that it has not.
        return had and not matches, matches

    def sent(self, entry: Marker, type_: Type | None) -> None:
        """Note what the client has now."""
        if self.plain and not self.unseen:
            return
        key = (entry.namespace, entry.name)
        self.unseen.discard(key)
        if self.on_payload:
            self.doubted.discard(key)
            if self.unsure:
                self.judged.add(key)
            if type_ in ("ADDED", "MODIFIED"):
                self.matching.add(key)
            else:
                self.matching.discard(key)

    def skipped(self, entry: Marker) -> None:
        """The entry was passed over: a client that has not the object still has not."""
        key = (entry.namespace, entry.name)
        if entry.type != "DELETED" and not self.had(entry, key):
            self.unseen.add(key)
        if self.on_payload and self._other_life(entry):
            self.doubted.add(key)

    def needs_payload(self, entry: Marker) -> bool:
        """Can the entry be of interest as far as its markers tell?"""
        if self.plain:
            return True
        return entry.type != "DELETED" and self.selects(entry)
