"""A list in protobuf begins with its length, so it is whole before its first byte goes out: kept small until then."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator

PLAIN = 4 * 1024 * 1024  # bytes kept as they are
BLOCK = 1024 * 1024  # bytes packed at a time
PACKED = 8 * 1024 * 1024  # packed bytes above which nothing is kept: objects of one type pack to a tenth
LEVEL = 1


class Spool:
    """Takes parts, gives blocks back in order. Bytes beyond PLAIN are kept packed; when those are too many (`full`)
    all is dropped and only counted from then on: what was taken must be had again."""

    def __init__(self) -> None:
        self.size = 0  # bytes taken
        self.full = False
        self._parts: list[bytes] = []
        self._waiting = 0
        self._blocks: deque[bytes | asyncio.Future[bytes]] = deque()
        self._plain = 0
        self._packed = 0
        self._last: asyncio.Future[bytes] | None = None

    async def add(self, parts: list[bytes]) -> None:
        """Append."""
        size = sum(map(len, parts))
        self.size += size
        if self.full:
            return
        self._parts += parts
        self._waiting += size
        if self._waiting >= BLOCK:
            await self._close_block()

    async def _close_block(self) -> None:
        block, self._parts, self._waiting = b"".join(self._parts), [], 0
        if self._plain + len(block) <= PLAIN:
            self._plain += len(block)
            self._blocks.append(block)
            return
        # Off the loop, one at a time: the next block is made meanwhile.
        if self._last is not None:
            self._packed += len(await self._last)
            if self._packed > PACKED:
                self.full = True
                self._blocks.clear()
                return
        self._last = asyncio.ensure_future(asyncio.to_thread(zlib.compress, block, LEVEL))
        self._blocks.append(self._last)

    async def blocks(self) -> AsyncIterator[bytes]:
        """What was taken, once; memory is given back meanwhile."""
        while self._blocks:
            block = self._blocks.popleft()
            if isinstance(block, bytes):
                yield block
            else:
                yield await asyncio.to_thread(zlib.decompress, await block)
        if self._parts:
            parts, self._parts = self._parts, []
            yield b"".join(parts)
