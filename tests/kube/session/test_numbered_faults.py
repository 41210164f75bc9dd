"""Faults of docs/faults.md that only a real API server can show."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.kube.session.tools import Kubectl, RunningFleet

PODS = 'operation="list",resource="pods"'
WATCHED = "/api/v1/pods?watch=1&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"


def lists_at_etcd(fleet: RunningFleet, member: str) -> int:
    """How often a member's API server has listed pods at its etcd."""
    text = fleet.member(member)("get", "--raw", "/metrics")
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in text.splitlines()
        if line.startswith("etcd_request_duration_seconds_count{") and PODS in line
    )


def test_fault_05_06_lists_and_pages_do_not_reach_members_etcd(fleet: RunningFleet, kubectl: Kubectl) -> None:
    """Most recent, version 0, kubectl's page, page two, a watch's initial state: members answer from their caches."""
    kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=6")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")

    def page_two() -> None:
        first = json.loads(kubectl("get", "--raw", "/api/v1/pods?limit=2"))
        assert len(first["items"]) == 2
        token = first["metadata"]["continue"]
        assert json.loads(kubectl("get", "--raw", f"/api/v1/pods?limit=2&continue={token}"))["items"]

    asks: dict[str, Callable[[], object]] = {
        "plain": lambda: kubectl("get", "--raw", "/api/v1/pods"),
        "version 0": lambda: kubectl("get", "--raw", "/api/v1/pods?resourceVersion=0&limit=500"),
        "kubectl get": lambda: kubectl("get", "pods"),
        "pages": page_two,
        "state of a watch": lambda: kubectl("get", "--raw", WATCHED),
    }
    for what, ask in asks.items():
        before = [lists_at_etcd(fleet, name) for name in ("east", "west")]
        for _ in range(5):
            ask()
        after = [lists_at_etcd(fleet, name) for name in ("east", "west")]
        # The API server's own loops may list once in a while; five requests to each would be five.
        assert all(now - then < 3 for then, now in zip(before, after, strict=True)), (what, before, after)
