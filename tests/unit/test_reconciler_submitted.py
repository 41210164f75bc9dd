"""Workloads that somebody else submitted to the scheduler (PlacementService.Submit): the reconciler leaves them alone."""

from __future__ import annotations

from typing import Any

import pytest
from reconciler_world import Made

from services.reconciler.applier import Applier
from services.reconciler.controllers import owners, workloads
from services.reconciler.controllers.context import Again, Context
from services.reconciler.keys import Key
from services.reconciler.names import FINALIZER, Obj
from services.reconciler.router import Router

OWNERS = [
    {"apiVersion": "example.com/v1", "kind": "Own", "name": "own", "uid": "u"},
    {"apiVersion": "batch.example.com/v1", "kind": "Job", "name": "own", "uid": "u"},
    {"apiVersion": "apps/v1", "kind": "Deployment", "name": "own"},
    {"apiVersion": "v1", "kind": "ConfigMap", "name": "own", "uid": "u"},
]


class Seen:
    """Notes what is queued and said."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, str]] = []
        self.said: list[str] = []

    def add(self, cluster: str, key: str, priority: int = 0) -> None:
        self.keys.append((cluster, key))

    def add_after(self, cluster: str, key: str, delay: float, priority: int = 0) -> None:
        self.keys.append((cluster, key))

    def say(self, obj: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        self.said.append(reason)


def submitted(made: Made, owner: dict[str, Any], name: str = "own", **meta: Any) -> Obj:
    workload = {
        "metadata": {"namespace": "ns", "name": name, "uid": "wl", "resourceVersion": "1", **meta},
        "spec": {"owner": owner, "podSets": []},
        "status": {"placement": {"attempt": 0, "clusters": [{"name": "east", "replicas": 1}]}},
    }
    made.seen("workload", workload)
    return workload


@pytest.mark.parametrize("owner", OWNERS)
async def test_they_keep_nothing_from_its_work(owner: dict[str, Any]) -> None:
    """Each of these is a root of the process, or a reconcile of everybody else's objects: they iterate over all Workloads."""
    made, seen = Made("east"), Seen()
    context = Context(made.world, seen, Applier(), seen)  # type: ignore[arg-type]
    router, member = Router(context), made.member("east")
    job = made.host("job", "j", spec={"template": {"spec": {}}})
    made.placed("job", job, {"east": 1})
    workload = submitted(made, owner)
    router.host_event("workload", "ADDED", workload, None)
    router.member_changed(member)
    assert ("east", "ns/job/j") in seen.keys, "what is placed there is due"
    assert list(made.world.roots(member, "ns")) == [job]
    await workloads.reconcile(context, Key("workload", "ns", "own"))
    assert made.client.calls == [], "neither changed nor deleted"


async def test_one_that_is_deleted_is_not_held() -> None:
    made, seen = Made("east"), Seen()
    submitted(made, OWNERS[0], finalizers=[FINALIZER], deletionTimestamp="2026-01-01T00:00:00Z")
    context = Context(made.world, seen, Applier(), seen)  # type: ignore[arg-type]
    await workloads.reconcile(context, Key("workload", "ns", "own"))
    assert made.client.calls == [("patch", "workloads.reclock.dev", "own")]


async def test_who_finds_one_in_its_place_is_told() -> None:
    made, seen = Made("east"), Seen()
    submitted(made, OWNERS[0], name="job-j")
    made.host("job", "j", spec={"template": {"spec": {}}})
    context = Context(made.world, seen, Applier(), seen)  # type: ignore[arg-type]
    with pytest.raises(Again):
        await owners.reconcile(context, Key("job", "ns", "j"))
    assert seen.said == ["NameTaken"] and made.client.calls == []
