"""Several ordered streams as one, in key order, without waiting for any that is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from _fastpath.listing import Item, Merger


class Source(Protocol):
    """An ordered stream: `more` waits for items, False at its end; `take` gives what is there."""

    async def more(self) -> bool: ...

    def take(self) -> list[Item]: ...


class Merge:
    """Gives items in key order; `source` of each is its source's place. Equal keys come one behind the other, by that."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._merger = Merger(len(sources))

    async def next(self, most: int) -> list[Item]:
        """At most `most` items, [] at the end. What is ready is given before waiting for a source."""
        merger, out = self._merger, list[Item]()
        while len(out) < most:
            for index in list(merger.lacks):
                source = self._sources[index]
                items = source.take()
                if not items:
                    if out:
                        return out
                    if not await source.more():
                        merger.end(index)
                        continue
                    items = source.take()
                merger.feed(index, items)
            taken = merger.take(most - len(out))
            if not taken:
                break
            out = out + taken if out else taken
        return out

    @property
    def waiting(self) -> bool:
        """Are items left that were taken from their source?"""
        return self._merger.waiting

    def gather(self, source: int) -> list[Item]:
        """Take all that a source has now; return what is left of it."""
        self._merger.feed(source, self._sources[source].take())
        return self._merger.left(source)
