"""One cluster as a resource's clock sees it: state, position, feed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from services.aggregator.clock import metrics
from services.aggregator.clock.position import Position
from services.aggregator.clock.tap import Tap
from services.aggregator.types import HOST, Aggregated
from services.common.fleet import FleetWatcher, Member
from services.common.kube.client import KubeClient
from services.common.kube.labels import parse_labels

Phase = Literal["Connecting", "Diffing", "Live", "Unreachable", "NoType", "Disengaging"]


class MemberState:
    """A cluster that is engaged and selected (or on its way out). Changed by its feed and the ResourceClock."""

    def __init__(
        self, cluster: str, member: Member | None, client: KubeClient, uid: str, label: str,
        position: Callable[[str], Position | None], diffing: Callable[[str], bool], changed: Callable[[], None],
        fed: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.member = member
        """None for the host."""
        self._client, self._uid = client, uid
        self._label = label
        self._position, self._diffing, self._changed, self._fed = position, diffing, changed, fed
        self._phase: Phase = "Connecting"
        self._exported = ""
        self.message = ""
        self.leaving = False
        self.feed: asyncio.Task[None] | None = None
        self.tap = Tap()
        self.doubted = float("-inf")
        """When this replica last wished that the one with the feed may doubt its watch (the loop's clock)."""

    @property
    def client(self) -> KubeClient:
        """The cluster's client; it stays the same over changed credentials."""
        return self._client

    @property
    def uid(self) -> str:
        """Uid of its kube-system namespace; "" while it was never reached."""
        return self._uid if self.member is None else self.member.uid

    @property
    def position(self) -> Position | None:
        """How far the log has followed it; None before its first diff."""
        return self._position(self.cluster)

    @property
    def state(self) -> Phase:
        """`Diffing`: a list is being compared and put; `Live`: followed by a watch, here or by the sequencer."""
        if self.leaving:
            return "Disengaging"
        told = self._fed() or self.position is None
        if told and self._phase == "NoType":
            return "NoType"
        if self.member is not None and not self.member.reachable:
            return "Unreachable"
        if not told:
            # Another process feeds the log: what it says of the cluster are its positions.
            return "Diffing" if self.position is None or self.position.diff else "Live"
        if self._phase == "Live":
            position = self.position
            if position is None or position.diff or self._diffing(self.cluster):
                return "Diffing"
        return self._phase

    @property
    def serves(self) -> bool:
        """Has the cluster objects of this type to ask for?"""
        return self.state not in ("Disengaging", "NoType")

    @property
    def settled(self) -> bool:
        """Does it not hold up the first sync?"""
        return self.state in ("Live", "NoType", "Unreachable", "Disengaging")

    def report(self, phase: Phase, message: str = "") -> None:
        """Called by the feed, or by the probe where another process feeds the log."""
        self._phase, self.message = phase, message
        self.export()
        self._changed()

    def export(self) -> None:
        """Bring the metric up to date."""
        state = self.state
        if state == self._exported:
            return
        if self._exported:
            metrics.STATE.labels(self._label, metrics.named(self.cluster), self._exported).set(0)
        metrics.STATE.labels(self._label, metrics.named(self.cluster), state).set(1)
        self._exported = state


def selected(aggregated: Aggregated, fleet: FleetWatcher) -> dict[str, Member | None]:
    """The clusters that an aggregation takes in; the host (None) where it says so."""
    chosen = parse_labels(aggregated.cluster_selector)
    out: dict[str, Member | None] = {
        name: member for name, member in fleet.members.items() if chosen.matches(member.labels)
    }
    if aggregated.include_host:
        out[HOST] = None
    return out
