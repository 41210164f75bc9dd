"""One member's part of a paged walk: asked for about its share of a page, and for more when that was too little."""

from __future__ import annotations

from collections.abc import Mapping

from _fastpath.listing import Item
from services.aggregator.reads.codec import Codec
from services.aggregator.reads.member_list import MemberList
from services.aggregator.reads.tokens import member_token
from services.common.kube.client import KubeClient


class MemberPages:
    """A source of `merge.Merge`: a member's objects behind a key at one member version.

    Without `limit` it is one request for all; with it requests for as many objects, later ones for up to `most`.
    `budget` bounds what is read ahead, in bytes.
    """

    def __init__(
        self, client: KubeClient, cluster: str, path: str, query: Mapping[str, str],
        headers: Mapping[str, str], *, table: bool, budget: int, version: int, after: str, limit: int,
        most: int, namespace: str, codec: Codec,
    ) -> None:  # fmt: skip
        self.cluster, self.version = cluster, version
        self.given = 0  # items taken so far
        self._client, self._path, self._query, self._headers = client, path, dict(query), headers
        self._table, self._budget, self._namespace = table, budget, namespace
        self._limit, self._most = limit, most
        self._codec = codec
        self._last = after
        self._list = self._first = self._open(limit, budget)
        self._next: MemberList | None = None  # asked for before it is needed

    def _open(self, limit: int, budget: int) -> MemberList:
        query = dict(self._query)
        if limit:
            query["limit"] = str(limit)
        if last := self._last:
            start = last.partition("/")[2] if self._namespace else last
            query["continue"] = member_token(self.version, start)
        else:
            query["resourceVersion"] = str(self.version)
            query["resourceVersionMatch"] = "Exact"
        return MemberList(
            self._client, self.cluster, self._path, query, self._headers,
            table=self._table, budget=budget, codec=self._codec,
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
            old, self._list, self._next = self._list, self._next or self._open_more(), None
            await old.close()
            await self._list.opened()
        return True

    def _open_more(self) -> MemberList:
        # Keys of members are seldom spread evenly: one that has most of a page is not asked for it in equal bits.
        self._limit = min(2 * self._limit, self._most)
        return self._open(self._limit, self._budget)

    def ahead(self, limit: int, budget: int) -> None:
        """Ask for the next objects now, unless there are none or that is done already; `budget` in bytes."""
        if self._next is None and self.sound and self._list.ended and self._list.continues:
            assert not self._list.items, "take them first: they are what comes next"
            self._next = self._open(limit, budget)

    @property
    def sound(self) -> bool:
        """Did nothing go wrong so far?"""
        return self._list.error is None and (self._next is None or self._next.error is None)

    def take(self) -> list[Item]:
        """All items that are there."""
        items = self._list.take()
        if items:
            self._last = items[-1].key
            self.given += len(items)
        return items

    async def rest(self, *, count: bool) -> tuple[bool, int | None]:
        """Has the member more than was taken, and how many objects it has behind the walk's start.

        The number is None where it is not wanted or the member gives none (selectors). With `count` the answer is
        read to its end.
        """
        while count and not self._list.ended:
            await self._list.wait_end()
        left = bool(self._list.items) or self._list.continues or not self._list.ended
        if not count:
            return left, None
        first = self._first
        if not first.continues:
            return left, first.read
        return left, None if first.remaining is None else first.read + first.remaining

    def drop(self) -> None:
        """End the requests without waiting for that."""
        for one in (self._list, self._next):
            if one is not None:
                one.drop()

    async def close(self) -> None:
        """End the requests."""
        await self._list.close()
        if self._next is not None:
            await self._next.close()
