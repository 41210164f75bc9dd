"""Objects that are created directly, and Explain: the member, and the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scheduler_fakes import World, node, pod

from services.scheduler import explain
from services.scheduler.matching import Taint
from services.scheduler.objects import ObjectPlacer, Pick
from services.scheduler.policy import Target
from services.scheduler.policy import parse as parse_policy


@pytest.fixture
def world() -> World:
    world = World()
    world.member("east")
    world.member("west", node("west-n0", cpu="8"))
    return world


async def place(
    world: World, name: str = "p", cpu: str = "1", candidates: Sequence[str] = (), policies: Any = (), **spec: Any
) -> Pick:
    placer = ObjectPlacer(world.fleet)
    placer.policies = tuple(policies)
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    obj = {"spec": {"containers": [container], **spec}}
    return await placer.place(obj, Target("v1", "Pod", "default", name), candidates)


async def test_the_member_with_most_room_wins(world: World) -> None:
    pick = await place(world)
    assert (pick.cluster, pick.fits) == ("west", True)


async def test_room_is_held_until_the_pod_appears(world: World) -> None:
    await place(world, "p", "6")
    assert world.states["west"].capacity.free["cpu"] == 2000
    world.states["west"].upsert_pod(pod("p", "6", "west-n0"))
    assert world.states["west"].capacity.free["cpu"] == 2000
    world.clock.advance(20)
    world.states["west"].expire(world.clock.monotonic())
    assert world.states["west"].capacity.free["cpu"] == 2000
    world.states["west"].remove_pod("pod-p")
    assert world.states["west"].capacity.free["cpu"] == 8000


async def test_a_burst_of_unnamed_pods_overcommits_nothing(world: World) -> None:
    placer = ObjectPlacer(world.fleet)
    container = {"name": "c", "resources": {"requests": {"cpu": "4"}}}
    picks = [
        await placer.place({"spec": {"containers": [container]}}, Target("v1", "Pod", "default", ""), ())
        for _ in range(4)
    ]
    assert [pick.fits for pick in picks] == [True, True, True, False]


async def test_what_fits_nowhere_waits_where_most_room_is(world: World) -> None:
    world.states["east"].upsert_pod(pod("local", "2", "east-n0"))
    pick = await place(world, cpu="100")
    assert (pick.cluster, pick.fits) == ("west", False)
    assert pick.verdicts["west"].filter == "Capacity"
    selected = await place(world, nodeSelector={"disk": "ssd"})
    assert (selected.cluster, selected.fits) == ("west", False)


async def test_a_pod_for_a_node_goes_to_its_member(world: World) -> None:
    assert (await place(world, nodeName="east-n0")).cluster == "east"


async def test_candidates_taints_and_policies_bind(world: World) -> None:
    assert (await place(world, candidates=["east"])).cluster == "east"
    world.change("west", taints=(Taint("reclock.dev/maintenance"),))
    assert (await place(world)).cluster == "east"
    names = parse_policy({"metadata": {"name": "p"}, "spec": {"clusterNames": ["west"]}})
    pick = await place(world, policies=[names])
    assert pick.cluster is None
    assert {v.cluster: v.filter for v in pick.verdicts.values()} == {"east": "ClusterNames", "west": "Taint"}


async def test_malformed_requests_are_refused(world: World) -> None:
    with pytest.raises(ValueError, match="no Kubernetes quantity"):
        await place(world, cpu="much")


async def test_explain_says_numbers_scores_and_shares(world: World) -> None:
    key = world.workload("a", cpu="6")
    await world.settle(key)
    workload = explain.find(world.engine, "default", "jobs.batch", "a")
    assert workload is not None
    placed, refused = await explain.verdicts(world.engine, workload)
    assert (placed.cluster, placed.eligible) == ("west", True)
    assert placed.message.startswith("placed here; for more: no room")
    assert (refused.cluster, refused.filter) == ("east", "Capacity")
    assert "asks cpu 6, free 4" in refused.message


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [
        ("deploy", "web", True), ("Deployment", "web", True), ("deployments.apps", "web", True),
        ("rs", "web-64c966cf88", True), ("workload", "web", True), ("job", "web", False), ("deploy", "other", False),
    ],
)  # fmt: skip
async def test_explain_finds_by_any_form_of_the_kind(world: World, kind: str, name: str, found: bool) -> None:
    world.workload("web", kind="Deployment", mode="Any")
    assert (explain.find(world.engine, "default", kind, name) is not None) is found
