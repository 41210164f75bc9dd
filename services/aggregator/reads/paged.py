"""One member's part of one page: asked for about its share, and for more when that was too little."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from services.aggregator.reads.codec import Codec
from services.aggregator.reads.member_list import Item, MemberList
from services.aggregator.reads.tokens import member_token
from services.common.kube.client import KubeClient


class MemberPages:
    """A source of `merge.Merge`: a member's objects behind a key at one member version.

    Without `limit` it is one request for all. `budget` bounds what is read ahead, in bytes.
    """

    def __init__(
        self, client: KubeClient, cluster: str, path: str, query: Mapping[str, str],
        headers: Mapping[str, str], *, table: bool, budget: int, version: int, after: str, limit: int,
        namespace: str, codec: Codec,
    ) -> None:  # fmt: skip
        self.cluster, self.version = cluster, version
        self._client, self._path, self._query, self._headers = client, path, dict(query), headers
        self._table, self._budget, self._limit, self._namespace = table, budget, limit, namespace
        self._codec = codec
        self._last = after
        self._first: MemberList | None = None
        self._list = self._open(limit)
        self._first = self._list

    def _open(self, limit: int) -> MemberList:
        query = dict(self._query)
        if limit:
            query["limit"] = str(limit)
        if self._last:
            start = self._last.partition("/")[2] if self._namespace else self._last
            query["continue"] = member_token(self.version, start)
        else:
            query["resourceVersion"] = str(self.version)
            query["resourceVersionMatch"] = "Exact"
        return MemberList(
            self._client, self.cluster, self._path, query, self._headers,
            table=self._table, budget=self._budget, codec=self._codec,
        )  # fmt: skip

    @property
    def current(self) -> MemberList:
        """The request under way."""
        return self._list

    async def more(self) -> bool:
        """Wait for items; asks the member for its next page when there is one."""
        while not await self._list.more():
            if not self._list.continues:
                return False
            old, self._list = self._list, self._open(self._limit)
            await old.close()
            await self._list.opened()
        return True

    def take(self) -> deque[Item]:
        """All items that are there."""
        items = self._list.take()
        if items:
            self._last = items[-1].key
        return items

    async def rest(self, *, count: bool) -> tuple[bool, int | None]:
        """Has the member more than was taken, and how many objects it has behind the page's start.

        The number is None where it is not wanted or the member gives none (selectors). With `count` the answer is
        read to its end.
        """
        while count and not self._list.ended:
            await self._list.wait_end()
        left = bool(self._list.items) or self._list.continues or not self._list.ended
        first = self._first
        assert first is not None
        if not count:
            return left, None
        if not first.continues:
            return left, first.read
        return left, None if first.remaining is None else first.read + first.remaining

    async def close(self) -> None:
        """End the request."""
        await self._list.close()
