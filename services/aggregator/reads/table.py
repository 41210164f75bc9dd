"""Tables of several members as one: columns mapped by name, the cluster's column behind the name (of events: the object)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from _fastpath.listing import Item
from _fastpath.splice import insert_cell, permute_cells, shown_row

CLUSTER_COLUMN: dict[str, Any] = {
    "name": "Cluster", "type": "string", "format": "",
    "description": "Member cluster that holds the object; empty for the host's own.", "priority": 0,
}  # fmt: skip


class _Envelope(msgspec.Struct):
    columns: msgspec.Raw = msgspec.field(name="columnDefinitions", default=msgspec.Raw(b"null"))


def columns_in(head: bytes, tail: bytes = b"") -> list[dict[str, Any]]:
    """Column definitions in a Table's text around its rows; [] when it names none (later watch events).

    `head` ends where the rows begin, `tail` starts behind them: either may hold the columns.
    """
    text = head + b"[]" + (tail or b"}")
    found = msgspec.json.decode(msgspec.json.decode(text, type=_Envelope).columns)
    return [column for column in found or [] if isinstance(column, dict) and "name" in column]


class Columns:
    """One set of columns, made of every member's, in the order they were met.

    A column once told to a client keeps its place; `order` says where each comes from in a member's rows.
    """

    def __init__(self) -> None:
        self.definitions: list[dict[str, Any]] = []
        self._by_member: dict[str, tuple[str, ...]] = {}

    def learn(self, cluster: str, columns: Sequence[dict[str, Any]]) -> None:
        """Take a member's columns in; nothing happens for [] (the member did not repeat them)."""
        if not columns:
            return
        self._by_member[cluster] = tuple(str(column["name"]) for column in columns)
        have = {column["name"] for column in self.definitions}
        self.definitions.extend(column for column in columns if column["name"] not in have)

    def knows(self, cluster: str) -> bool:
        """Were this member's columns seen?"""
        return cluster in self._by_member

    def layout(self) -> Layout:
        """The columns as of now, for one answer or watch."""
        return Layout(list(self.definitions))

    def places(self, cluster: str) -> tuple[str, ...]:
        """Names of a member's columns, in its rows' order."""
        return self._by_member.get(cluster, ())


class Layout:
    """The columns that one client was told, and how each member's rows are brought into them."""

    def __init__(self, definitions: list[dict[str, Any]]) -> None:
        names = [column["name"] for column in definitions]
        at = next((i for i, column in enumerate(definitions) if column.get("format") == "name"), -1)
        if at < 0:
            at = names.index("Name") if "Name" in names else -1
        if at >= 0 and definitions[at].get("priority") and "Object" in names:
            at = names.index("Object")  # events: their name is hidden, behind a message that is padded
        self.cluster_at = at + 1
        self._names = names
        shown = [*definitions[: self.cluster_at], CLUSTER_COLUMN, *definitions[self.cluster_at :]]
        self.definitions = msgspec.json.encode(shown)
        self._orders: dict[tuple[str, ...], list[int] | None] = {}
        self._cells: dict[str, bytes] = {}

    def row(self, cluster: str, places: tuple[str, ...], row: bytes) -> bytes:
        """A member's row under this layout; a column that the member lacks is null."""
        order = self._order_of(places)
        if order is not None:
            row = permute_cells(row, order)
        return insert_cell(row, self.cluster_at, self._cell(cluster))

    def row_of(self, cluster: str, places: tuple[str, ...], item: Item, body: bytes) -> bytes:
        """`row` of an item, with `body` in its object's place."""
        start, end = item.meta.start, item.end
        if self._order_of(places) is not None:
            return self.row(cluster, places, item.raw[:start] + body + item.raw[end:])
        return shown_row(item.raw, start, end, body, self.cluster_at, self._cell(cluster))

    def _order_of(self, places: tuple[str, ...]) -> list[int] | None:
        order = self._orders.get(places, ...)
        if order is ...:
            order = self._orders[places] = self._order(places)
        return order

    def _cell(self, cluster: str) -> bytes:
        cell = self._cells.get(cluster)
        if cell is None:
            cell = self._cells[cluster] = msgspec.json.encode(cluster)
        return cell

    def _order(self, places: tuple[str, ...]) -> list[int] | None:
        if not places or list(places) == self._names:
            return None
        where = {name: i for i, name in enumerate(places)}
        return [where.get(name, -1) for name in self._names]

    def blank_row(self, obj: bytes) -> bytes:
        """A row with nothing but an object (bookmarks, deletions of which the member sent nothing)."""
        cells = b",".join([b"null"] * (len(self._names) + 1))
        return b'{"cells":[' + cells + b'],"object":' + obj + b"}"
