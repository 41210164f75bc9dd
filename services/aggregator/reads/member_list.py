"""One member's part of a list: read ahead as it streams, cut into items, never held whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from _fastpath.listing import Item, read_items, read_rows, version_of
from _fastpath.splice import SpliceError, scan
from services.aggregator.reads.codec import JSON, Codec, list_names
from services.common.errors import MemberUnreachable, StatusError
from services.common.kube.client import KubeClient

log = logging.getLogger(__name__)

READ = 256 * 1024  # bytes taken from the socket at a time
SILENCE = 20.0  # seconds without a byte after which a member counts as away
DRAIN = 512 * 1024  # unread bytes up to which finishing a body is cheaper than a new TLS connection


class MemberList:
    """Reads one request's answer in its own task, at most `budget` bytes ahead of who takes the items.

    Use: `await opened()`, then `items` and `more()` until it says False, always `close()`.
    """

    def __init__(
        self, client: KubeClient, cluster: str, path: str, query: Mapping[str, str],
        headers: Mapping[str, str], *, table: bool, budget: int, codec: Codec = JSON,
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.items: list[Item] = []
        self.warnings: list[str] = []
        self.read = 0  # items cut so far
        self.ended = False
        self.tail = b""
        self.error: StatusError | None = None
        self._scanner = codec.scanner(table)
        self._table, self._scan = table, codec.scan
        self._client, self._path, self._query = client, path, query
        self._headers = {"Accept-Encoding": "identity", **headers}
        self._budget, self._ahead = budget, 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._dropped = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"list:{cluster}{path}")

    @property
    def head(self) -> bytes:
        """What stands before the array (of a Table; b"" in protobuf)."""
        return self._scanner.head or b"{}"

    @property
    def names(self) -> tuple[str, str]:
        """kind and apiVersion of the list; "" where they did not come first."""
        return list_names(self._scanner)

    @property
    def remaining(self) -> int | None:
        """remainingItemCount as the member gave it."""
        return self._scanner.remaining

    @property
    def version(self) -> int:
        """resourceVersion of the list; 0 before it was read."""
        return version_of(self._scanner.list_version)

    @property
    def continues(self) -> bool:
        """Has the member more behind this answer?"""
        return bool(self._scanner.continue_token)

    async def opened(self) -> None:
        """Wait until the head was read; raises what went wrong before."""
        while self._scanner.head is None and not self.ended:
            await self._wait()
        if self.error is not None:
            raise self.error

    async def more(self) -> bool:
        """Wait for items; False at the end. Raises when the answer broke off."""
        while not self.items:
            if self.error is not None:
                raise self.error
            if self.ended:
                return False
            await self._wait()
        return True

    def take(self) -> list[Item]:
        """All items that are there; makes room for as many."""
        taken, self.items = self.items, []
        self._ahead = 0
        self._room.set()
        return taken

    async def _wait(self) -> None:
        self._news.clear()
        if not self.items:
            self._ahead = 0  # one item may be longer than the budget: it is wanted all the same
            self._room.set()
        await self._news.wait()

    async def wait_end(self) -> None:
        """Read on to the end (a page's rest is short), or to the error."""
        self._budget = 1 << 60
        self._room.set()
        await asyncio.wait((self._task,))

    def drop(self) -> None:
        """End the request, without waiting for that."""
        self._task.cancel()

    async def close(self) -> None:
        """End the request; a body that is nearly read is finished, so that the connection lives on."""
        if not self._task.done():
            self._dropped = True
            self._room.set()
            await asyncio.wait((self._task,), timeout=0.05)
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            await self._read()
            self.tail = self._scanner.finish() if not self._dropped else b""
        except StatusError as error:
            self.error = error
        except SpliceError as error:
            self.error = MemberUnreachable(f"cluster {self.cluster}: its answer is no list: {error}")
        except Exception as error:
            log.exception("list of %s on %s failed", self._path, self.cluster)
            self.error = MemberUnreachable(f"cluster {self.cluster}: {type(error).__name__}")
        finally:
            self.ended = True
            self._news.set()

    async def _read(self) -> None:
        stream = self._client.stream(
            "GET", self._path, query=self._query, headers=self._headers, sock_read=SILENCE
        )
        async with stream as response:
            self.warnings = response.headers.getall("Warning", [])
            dropped = 0
            loop = asyncio.get_running_loop()
            heard = loop.time()
            content, feed = response.content, self._scanner.feed
            while chunk := await content.readany():
                if not chunk.isspace():
                    heard = loop.time()
                elif loop.time() - heard > SILENCE:
                    raise MemberUnreachable(f"cluster {self.cluster}: its list has no end")
                if self._dropped:
                    dropped += len(chunk)
                    if dropped > DRAIN:
                        return
                    continue
                cut = feed(chunk)
                if cut:
                    self.read += len(cut)
                    self.items += read_rows(cut, scan) if self._table else read_items(cut, self._scan)
                self._ahead += len(chunk)
                if cut or self._scanner.head is not None:
                    self._news.set()
                while self._ahead > self._budget and not self._dropped:
                    self._room.clear()
                    await self._room.wait()
