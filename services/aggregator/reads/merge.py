"""Several ordered streams as one, in key order, without waiting for any that is not needed."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Keyed(Protocol):
    """Has a key to order by."""

    key: str


K = TypeVar("K", bound=Keyed)


class Source(Protocol[K]):
    """An ordered stream: `more` waits for items, False at its end; `take` gives what is there."""

    async def more(self) -> bool: ...

    def take(self) -> deque[K]: ...


class Merge(Generic[K]):
    """Yields (source's index, item) in key order. Equal keys come one behind the other, by index."""

    def __init__(self, sources: Sequence[Source[K]]) -> None:
        self._sources = sources
        self._buffers: list[deque[K]] = [deque() for _ in sources]
        self._heap: list[tuple[str, int]] = []
        self._begun = False

    async def next(self, most: int) -> list[tuple[int, K]]:
        """At most `most` items, [] at the end. What is ready is given before waiting for a source."""
        if not self._begun:
            self._begun = True
            for i, source in enumerate(self._sources):
                if await source.more():
                    self._buffers[i] = source.take()
                    self._heap.append((self._buffers[i][0].key, i))
            heapq.heapify(self._heap)
        heap, out = self._heap, list[tuple[int, K]]()
        while heap and len(out) < most:
            i = heap[0][1]
            buffer = self._buffers[i]
            if not buffer:
                buffer = self._buffers[i] = self._sources[i].take()
            if not buffer:
                if out:
                    return out
                if not await self._sources[i].more():
                    heapq.heappop(heap)
                    continue
                buffer = self._buffers[i] = self._sources[i].take()
            # While no other source's key lies before, items are taken without touching the heap.
            limit = min(heap[1:3], default=None)
            if limit is not None and (buffer[0].key, i) > limit:
                heapq.heapreplace(heap, (buffer[0].key, i))
                continue
            while buffer and len(out) < most and (limit is None or (buffer[0].key, i) < limit):
                out.append((i, buffer.popleft()))
            if buffer:
                heapq.heapreplace(heap, (buffer[0].key, i))
        return out

    @property
    def waiting(self) -> bool:
        """Are items left that were taken from their source?"""
        return any(self._buffers)

    def gather(self, source: int) -> deque[K]:
        """Take all that a source has now; return what is left of it. Not to be changed."""
        self._buffers[source].extend(self._sources[source].take())
        return self._buffers[source]
