"""The members' lists at one fleet version, merged, numbered and spliced: what lists and new watches share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from _fastpath.listing import Item
from services.aggregator.clock.position import Position
from services.aggregator.reads.codec import JSON, Codec
from services.aggregator.reads.merge import Merge
from services.aggregator.reads.paged import MemberPages
from services.aggregator.reads.presenter import Presenter
from services.aggregator.reads.table import Columns, Layout, columns_in
from services.common.errors import MemberUnreachable, StatusError
from services.common.kube.client import KubeClient

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

log = logging.getLogger(__name__)

READ_AHEAD = 16 * 1024 * 1024  # bytes read ahead of the client, over all members of one list
MIN_AHEAD = 256 * 1024
OPEN_TIMEOUT = 5.0  # seconds for a member to begin its answer: one that hangs delays nobody for longer


class Restart(Exception):
    """The list cannot be had at this version: take a new one. Carries the reason for logs."""


class BrokeOff(MemberUnreachable):
    """A member's answer ended midway, or turned out to be none."""

    def __init__(self, cluster: str, message: str) -> None:
        super().__init__(message)
        self.cluster = cluster


@dataclass(slots=True)
class Plan:
    """Which members are asked, at what version, and for what."""

    version: int  # the fleet version of everything in the answer
    positions: dict[str, Position]
    clients: dict[str, KubeClient]
    path: str
    namespace: str
    query: dict[str, str]  # selectors and Table's options
    headers: dict[str, str]
    table: bool = False
    codec: Codec = JSON
    after: str = ""
    limit: int = 0
    field_selectors: dict[str, str] = field(default_factory=dict)  # per cluster, where uids differ
    member_headers: Mapping[str, str] = field(default_factory=dict)  # impersonation
    only_same: bool = False  # objects that the log has not in that state at `version` are left out: no Restart for them


@dataclass(slots=True)
class Shown:
    """One object as a client gets it."""

    key: str
    cluster: str
    version: int
    body: bytes  # the object's bytes, or a Table's row around it


def likely(part: float) -> int:
    """How many objects a member that has `part` of a page on average will hardly exceed."""
    return int(part + 2.5 * part**0.5) + 4


class Walk:
    """Opened member lists. `failed` names members that did not answer, with why; close it when done."""

    def __init__(self, clock: ResourceClock, presenter: Presenter, plan: Plan) -> None:
        self._clock, self._presenter, self.plan = clock, presenter, plan
        self.failed: dict[str, StatusError] = {}
        self.sources: list[MemberPages] = []
        self._merge = Merge([])
        self._clusters: list[str] = []  # of the sources, and what each is in this life of its cluster
        self._incarnations: list[str] = []
        self.columns = Columns()
        self.layout: Layout | None = None  # of a Table, once opened
        self.taken = 0  # items consumed, hidden ones too
        self.last_key = plan.after
        # By source: items consumed up to the last page's end, and in that page.
        self._used: list[int] = []
        self._shares: list[int] = []

    async def open(self) -> None:
        """Ask all members at once and wait until each answered or failed."""
        plan = self.plan
        budget = max(MIN_AHEAD, READ_AHEAD // max(1, len(plan.positions)))
        share = self._share(len(plan.positions))
        pages = []
        for cluster in sorted(plan.positions):
            query = dict(plan.query)
            if cluster in plan.field_selectors:
                query["fieldSelector"] = plan.field_selectors[cluster]
            headers = {**plan.headers, **(plan.member_headers if cluster else {})}
            pages.append(MemberPages(
                plan.clients[cluster], cluster, plan.path, query, headers, table=plan.table, budget=budget,
                version=plan.positions[cluster].read, after=plan.after, limit=share, most=plan.limit,
                namespace=plan.namespace, codec=plan.codec,
            ))  # fmt: skip
        self.sources = pages
        results = await asyncio.gather(*(self._opened(page) for page in pages), return_exceptions=True)
        for page, result in zip(pages, results, strict=True):
            if isinstance(result, StatusError):
                self.failed[page.cluster] = result
            elif isinstance(result, BaseException):
                raise result
        self.sources = [page for page in pages if page.cluster not in self.failed]
        self._merge = Merge(self.sources)
        self._clusters = [page.cluster for page in self.sources]
        self._incarnations = [plan.positions[cluster].incarnation for cluster in self._clusters]
        if plan.table:
            for page in self.sources:
                self.columns.learn(page.cluster, columns_in(page.current.head))
            self.layout = self.columns.layout()

    async def _opened(self, page: MemberPages) -> None:
        try:
            async with asyncio.timeout(OPEN_TIMEOUT):
                await page.current.opened()
        except TimeoutError:
            await page.close()
            seconds = f"{OPEN_TIMEOUT:g} s"
            raise MemberUnreachable(f"cluster {page.cluster}: no answer to a list within {seconds}") from None

    def _share(self, members: int) -> int:
        """Objects to ask each member for."""
        limit = self.plan.limit
        return limit if members < 2 or limit == 0 else min(limit, likely(limit / members))

    async def next(self, most: int) -> list[Shown] | None:
        """The next objects in key order, None at the end; Restart, BrokeOff, or another StatusError of a member."""
        found = await self._next(most)
        if found is None:
            return None
        bodies = await self._bodies(*found)
        return [
            Shown(item.key, self._clusters[item.source], version, body)
            for item, version, body in zip(*found, bodies, strict=True)
        ]

    async def bodies(self, most: int) -> list[bytes] | None:
        """As `next`, the objects' bytes (a Table's rows) alone."""
        found = await self._next(most)
        return None if found is None else await self._bodies(*found)

    async def _next(self, most: int) -> tuple[list[Item], list[int]] | None:
        """The next objects that are shown, and their fleet versions."""
        try:
            items = await self._merge.next(most)
        except MemberUnreachable as error:
            for source in self.sources:
                if source.current.error is error:
                    raise BrokeOff(source.cluster, error.message) from error
            raise
        if not items:
            return None
        self.taken += len(items)
        self.last_key = items[-1].key
        versions = self._clock.numbers(items, self._clusters, self._incarnations, self.plan.version)
        if 0 in versions:
            judged = [(item, version or self._number(self._clusters[item.source], item))
                      for item, version in zip(items, versions, strict=True)]  # fmt: skip
            items = [item for item, version in judged if version is not None]
            versions = [version for _, version in judged if version is not None]
        return items, versions

    async def _bodies(self, items: list[Item], versions: Sequence[int]) -> list[bytes]:
        clusters = self._clusters
        shown = self._presenter.present_all(clusters, items, versions)
        out = []
        for item, version, body in zip(items, versions, shown, strict=True):
            if body is None:
                body = await self._presenter.resolve(clusters[item.source], item.raw, item.meta, version, item.end)
            if self.layout is not None:
                cluster = clusters[item.source]
                body = self.layout.row_of(cluster, self.columns.places(cluster), item, body)
            out.append(body)
        return out

    def _number(self, cluster: str, item: Item) -> int | None:
        """The object's fleet version at the list's; None when another member's of that name is shown.

        What the clock's `numbers` gives at once, it gives for the same reasons.
        """
        clock, version = self._clock, self.plan.version
        marker = clock.shown(item.namespace, item.name)
        # What is shown now and not newer than the list was shown then too: the end of a clash is numbered anew.
        settled = marker is not None and marker.cluster == cluster and marker.fleet <= version
        if not settled:
            marker = clock.marker_at(cluster, item.namespace, item.name, version)
        if (
            marker is None
            or marker.deleted
            or marker.version != item.version
            or marker.uid != item.meta.uid
            or marker.incarnation != self.plan.positions[cluster].incarnation
        ):
            if self.plan.only_same:
                return None
            raise Restart(f"{cluster}: {item.key} at {item.version} has no marker at {version}")
        if not settled:
            shown = clock.shown_at(item.namespace, item.name, version)
            if shown is None or shown.cluster != cluster:
                return None
        return marker.fleet

    async def rest(self, *, count: bool) -> tuple[bool, int | None]:
        """Is there more behind what was taken, and with `count` how many objects (None: not known)."""
        left = self._merge.waiting
        total: int | None = 0
        for source in self.sources:
            more, number = await source.rest(count=count)
            left = left or more
            total = None if total is None or number is None else total + number
        return left, None if total is None else max(0, total - self.taken)

    def turn(self) -> int:
        """End a page; return about how many bytes of objects were read and not used."""
        held = [self._merge.gather(i) for i in range(len(self.sources))]
        used = [source.given - len(left) for source, left in zip(self.sources, held, strict=True)]
        before = self._used or [0] * len(used)
        self._shares = [now - then for now, then in zip(used, before, strict=True)]
        self._used = used
        return sum(len(item.raw) for left in held for item in left)

    def ahead(self, room: int, size: int) -> None:
        """Ask members, all at once, for what the next page will take of theirs if it is like the last.

        At most `room` bytes in all; an object takes about `size`.
        """
        most = room // max(1, size)
        for index, source in enumerate(self.sources):
            part = likely(self._shares[index]) if self._shares[index] else 0
            wanted = min(part, self.plan.limit) - len(self._merge.gather(index))
            if 0 < wanted <= most:
                most -= wanted
                source.ahead(wanted, 2 * wanted * size)

    @property
    def sound(self) -> bool:
        """Did all that was asked for come, or is still coming?"""
        return not self.failed and all(source.sound for source in self.sources)

    @property
    def warnings(self) -> list[str]:
        """Warning headers of members, as they came."""
        return [text for source in self.sources for text in source.current.warnings]

    def drop(self) -> None:
        """End all requests without waiting for that."""
        for source in self.sources:
            source.drop()

    async def close(self) -> None:
        """End all requests."""
        await asyncio.gather(*(source.close() for source in self.sources))
