"""The room that a member's nodes have: allocatable less what pods use less what reservations hold.

Synchronous and free of I/O: one event loop owns a `Capacity`; every change bumps `version`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.common.kube import quantity
from services.scheduler.matching import Taint
from services.scheduler.shape import Shape

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable")
REMEMBERED = 4096
"""Sets of rules whose nodes are remembered: workloads come with ever new ones while nodes stay as they are."""
Allocation = list[tuple["Node", int]]
"""Where pods of one shape are held: nodes and counts."""


@dataclass(eq=False, slots=True)
class Node:
    """One node; `free` may fall below 0 while a reservation's guess differs from where its pods went."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    allocatable: dict[str, int] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)

    def fits(self, shape: Shape, limit: int) -> int:
        """How many pods of `shape` fit, `limit` at most."""
        free = self.free
        for name, amount in shape.requests:
            # Indexing: a missing resource is rare, and `get` is what this loop would spend its time on.
            count = free[name] // amount if name in free else 0
            if count < limit:
                if count <= 0:
                    return 0
                limit = count
        return limit


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why pods of a shape find no room: the filter, for people, and the numbers."""

    filter: str
    message: str
    asked: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)


class Capacity:
    """All nodes of one member."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.allocatable: dict[str, int] = {}
        self.free: dict[str, int] = {}
        self.version = 0
        self._eligible: dict[bytes, list[Node]] = {}
        self._full: dict[bytes, int] = {}
        self._used: dict[str, dict[str, int]] = {}

    def upsert_node(self, obj: Mapping[str, Any]) -> bool:
        """Take in a `v1.Node`; says whether anything that bears on placement changed."""
        name = obj["metadata"]["name"]
        node = make_node(obj)
        old = self.nodes.get(name)
        if old is not None:
            same = (old.labels, old.taints, old.allocatable) == (node.labels, node.taints, node.allocatable)
            if same:
                return False
            change = {key: node.allocatable.get(key, 0) - old.allocatable.get(key, 0)
                      for key in {*node.allocatable, *old.allocatable}}  # fmt: skip
            old.labels, old.taints, old.allocatable = node.labels, node.taints, node.allocatable
            self._shift(old, change.items(), 1)
            quantity.add(self.allocatable, change.items())
        else:
            self.nodes[name] = node
            quantity.add(self.allocatable, node.allocatable.items())
            self._shift(node, node.allocatable.items(), 1)
            # Pods may have been listed before their node.
            self._shift(node, self._used.get(name, {}).items(), -1)
        self._eligible.clear()
        return True

    def remove_node(self, name: str) -> Node | None:
        """Forget a node; what was held there stays with the returned object and counts no more."""
        node = self.nodes.pop(name, None)
        if node is not None:
            quantity.add(self.allocatable, node.allocatable.items(), -1)
            quantity.add(self.free, node.free.items(), -1)
            self.version += 1
            self._eligible.clear()
        return node

    def use(self, node_name: str, shape: Shape, times: int = 1) -> None:
        """Count `times` pods of `shape` on a node, known yet or not; negative when they end."""
        used = self._used.setdefault(node_name, {})
        quantity.add(used, shape.requests, times)
        if not any(used.values()):
            del self._used[node_name]
        node = self.nodes.get(node_name)
        if node is not None:
            self._shift(node, shape.requests, -times)

    def _shift(self, node: Node, amounts: Any, times: int) -> None:
        free, total = node.free, self.free
        for name, amount in amounts:
            delta = amount * times
            free[name] = free.get(name, 0) + delta
            total[name] = total.get(name, 0) + delta
        self.version += 1
        if times > 0:
            self._full.clear()

    def eligible(self, shape: Shape) -> list[Node]:
        """Nodes that the shape's rules allow, whatever is free there. Cached until a node changes."""
        found = self._eligible.get(shape.node_key)
        if found is None:
            if len(self._eligible) >= REMEMBERED:
                self._eligible.clear()
            found = [n for n in self.nodes.values() if shape.refuses(n.name, n.labels, n.taints) is None]
            self._eligible[shape.node_key] = found
        return found

    def fits(self, shape: Shape, limit: int) -> int:
        """How many pods of `shape` fit now, `limit` at most. O(eligible nodes)."""
        if not self._may_fit(shape):
            return 0
        found = 0
        for node in self.eligible(shape):
            found += node.fits(shape, limit - found)
            if found >= limit:
                return found
        self._note_full(shape, found)
        return found

    def hold(self, shape: Shape, count: int) -> Allocation:
        """Take room for up to `count` pods, first fit by node; the caller owns the allocation."""
        allocation: Allocation = []
        if count <= 0 or not self._may_fit(shape):
            return allocation
        missing = count
        for node in self.eligible(shape):
            number = node.fits(shape, missing)
            if number:
                self._shift(node, shape.requests, -number)
                allocation.append((node, number))
                missing -= number
                if not missing:
                    break
        self._note_full(shape, count - missing)
        return allocation

    def give_back(self, shape: Shape, allocation: Allocation, count: int, prefer: str = "") -> None:
        """Return room for `count` pods of an allocation, that on node `prefer` first."""
        allocation.sort(key=lambda item: item[0].name == prefer)
        while count > 0 and allocation:
            node, number = allocation.pop()
            part = min(number, count)
            if self.nodes.get(node.name) is node:
                self._shift(node, shape.requests, part)
            if number > part:
                allocation.append((node, number - part))
            count -= part

    def _may_fit(self, shape: Shape) -> bool:
        """A cheap no: the shape found nothing since the last time that room grew."""
        return shape.key not in self._full

    def _note_full(self, shape: Shape, found: int) -> None:
        if found == 0:
            self._full[shape.key] = self.version

    def refusal(self, shape: Shape) -> Refusal:
        """Say why no pod of `shape` fits: the rule that keeps most nodes out, or the numbers."""
        total = len(self.nodes)
        if not total:
            return Refusal("Nodes", "it has no nodes")
        nodes = self.eligible(shape)
        if not nodes:
            reasons = Counter(
                reason for n in self.nodes.values() if (reason := shape.refuses(n.name, n.labels, n.taints))
            )
            first = reasons.most_common(1)[0][0][0]
            text = "; ".join(f"{count} of {total} nodes: {reason[1]}" for reason, count in reasons.most_common(3))
            return Refusal(first, text)
        asked = dict(shape.requests)
        # The node with most of the scarcest resource tells people most about what would have to change.
        best = max(nodes, key=lambda n: min(n.free.get(name, 0) / amount for name, amount in shape.requests))
        free = {name: max(best.free.get(name, 0), 0) for name in asked}
        lacking = [name for name, amount in asked.items() if free[name] < amount]
        parts = [
            f"asks {name} {quantity.render(asked[name], name)}, free {quantity.render(free[name], name)}"
            for name in lacking
        ]
        text = f"no room on {len(nodes)} of {total} nodes; nearest {best.name}: {', '.join(parts)}"
        return Refusal("Capacity", text, asked, free)


def make_node(obj: Mapping[str, Any]) -> Node:
    """Read a `v1.Node`."""
    spec, metadata = obj.get("spec") or {}, obj["metadata"]
    taints = tuple(
        Taint(item.get("key", ""), item.get("value") or "", item.get("effect", ""))
        for item in spec.get("taints") or ()
    )
    if spec.get("unschedulable") and not any(taint.key == UNSCHEDULABLE.key for taint in taints):
        taints = (*taints, UNSCHEDULABLE)
    status = obj.get("status") or {}
    allocatable = quantity.parse_all(status.get("allocatable") or status.get("capacity"))
    return Node(metadata["name"], dict(metadata.get("labels") or {}), taints, allocatable)
