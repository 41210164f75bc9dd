"""The rules of placement beside the numbered behaviours: dispatchers, races, hung members, policies, room."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scheduler_fakes import World, gated, node, pod

from services.common.errors import MemberUnreachable
from services.scheduler.admission import LocalAdmission
from services.scheduler.engine import BEING_READ
from services.scheduler.fleet import JOINING
from services.scheduler.member import Answer


@pytest.fixture
def world() -> World:
    return World()


def hang(world: World, name: str) -> None:
    gated(world, name).gate.clear()


# Rule 1 and 2: compare-and-swap, in-flight reservations.


async def test_another_manager_that_stored_first_wins(world: World) -> None:
    world.member("east", remote=True)
    world.member("west", remote=True)
    hang(world, "west")
    key = world.workload("job-a")
    status = {"placement": {"attempt": 0, "clusters": [{"name": "west", "replicas": 1}]}}
    world.store.before_patch.append(lambda: world.report(key, **status))
    gated(world, "west").gate.set()
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}
    assert world.states["east"].ledger.get("uid-job-a") is None
    held = world.states["west"].ledger.get("uid-job-a")
    assert held is not None
    assert held.confirmed


async def test_suspended_while_it_was_being_placed(world: World) -> None:
    world.member("east", remote=True)
    key = world.workload("job-a", cpu="3")
    world.store.before_patch.append(lambda: world.edit(key, suspend=True))
    await world.settle(key)
    assert world.clusters(key) is None
    assert world.states["east"].capacity.free["cpu"] == 4000


async def test_concurrent_placements_never_overcommit(world: World) -> None:
    for name in ("east", "west"):
        world.member(name, remote=True)
    keys = [world.workload(f"job-{n}", cpu="3") for n in range(6)]
    await asyncio.gather(*(world.engine.reconcile(key) for key in keys))
    # Losers are released only after the winner is stored: who was refused meanwhile is woken and tries again.
    await asyncio.gather(*(world.engine.reconcile(key) for key in keys))
    await asyncio.gather(*(world.engine.reconcile(key) for key in keys))
    placed = [key for key in keys if world.clusters(key) is not None]
    assert len(placed) == 2
    assert {next(iter(world.clusters(key) or {})) for key in placed} == {"east", "west"}
    assert all(state.capacity.free["cpu"] == 1000 for state in world.states.values())


async def test_pods_that_lost_the_race_to_local_work_are_an_eviction(world: World) -> None:
    world.policy(podsReadyTimeout=300)
    world.member("east")
    key = world.workload("job-a", cpu="3")
    await world.settle(key)
    west = world.member("west")
    world.states["east"].upsert_pod(pod("local", "4", "east-n0"))
    world.states["east"].upsert_pod(pod("job-a-x", "3", owner=("Job", "job-a")))
    wait = await world.engine.reconcile(key)
    assert wait == pytest.approx(300)
    world.clock.advance(301)
    west.upsert_pod(pod("busy", "4", "west-n0"))
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}, "nothing better: it stays"
    west.remove_pod("pod-busy")
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}
    assert world.status(key)["attempts"] == 1


async def test_of_a_divided_workload_only_the_pods_without_a_node_move(world: World) -> None:
    world.policy(type="Divided", divided={"strategy": "StaticWeight"})
    world.member("east")
    world.member("west")
    key = world.workload("web", kind="Deployment", count=6, cpu="1", mode="Any")
    await world.settle(key)
    assert world.clusters(key) == {"east": 3, "west": 3}
    east = world.states["east"]
    east.upsert_pod(pod("local", "2", "east-n0"))
    owner, labels = ("ReplicaSet", "web-abc"), {"pod-template-hash": "abc"}
    for number, where in enumerate(("east-n0", "east-n0", "")):
        east.upsert_pod(pod(f"web-{number}", "1", where, owner=owner, labels=labels))
    world.clock.advance(301)
    await world.settle(key)
    assert world.clusters(key) == {"east": 2, "west": 4}


# Rule 10: hung members, impossible requests.


async def test_a_hung_member_stops_nobody(world: World) -> None:
    world.member("east", remote=True)
    world.member("west", remote=True)
    hang(world, "east")
    keys = [world.workload(f"job-{n}", cpu="100m") for n in range(10)]
    await asyncio.wait_for(asyncio.gather(*(world.engine.reconcile(key) for key in keys)), 1.5)
    assert all(world.clusters(key) == {"west": 1} for key in keys)


async def test_sequential_asks_one_after_another(world: World) -> None:
    world.policy(dispatcher="Sequential", admitTimeout=1)
    for name in ("east", "west"):
        world.member(name, remote=True)
    key = world.workload("job-a")
    await world.settle(key)
    assert [len(gated(world, name).asked) for name in ("east", "west")] == [1, 0]
    hang(world, "east")
    world.states["west"].upsert_pod(pod("local", "2", "west-n0"))
    other = world.workload("job-b")
    await world.settle(other)
    assert world.clusters(other) == {"west": 1}
    assert gated(world, "east").released.count("uid-job-b") == 1


async def test_a_worker_that_fails_is_a_refusal_with_its_words(world: World) -> None:
    world.member("east", remote=True)

    async def fails(ask: Any, ttl: float | None = None) -> Answer:
        raise MemberUnreachable("cluster east: cannot connect: refused")

    gated(world, "east").reserve = fails  # type: ignore[method-assign]
    key = world.workload("job-a")
    await world.settle(key)
    assert "east: Worker: cluster east: cannot connect: refused" in world.condition(key, "Scheduled")["message"]


async def test_a_cluster_that_did_not_answer_is_asked_again_soon(world: World) -> None:
    """Unlike one without room it tells nobody when it could: half a minute would be lost each time."""
    state = world.member("east")
    admission = world.fleet.admissions["east"]
    problems = ["did not answer a moment ago"]
    admission._problem = lambda: problems[0]  # type: ignore[attr-defined]
    key = world.workload("a")
    wait = await world.engine.reconcile(key)
    assert wait is not None and wait <= 5
    assert world.clusters(key) is None
    problems[0] = ""
    state.remove_node("east-n0")
    wait = await world.engine.reconcile(key)
    assert wait == 30, "room that comes is told"


async def test_a_loss_that_becomes_due_while_members_are_told_is_looked_at_again(world: World) -> None:
    """The timer may be a moment early; then the time-out passes between two looks of one step."""
    world.member("east")
    key = world.workload("a")
    await world.settle(key)
    world.member("west")
    world.lose("east")
    world.clock.advance(899.9)
    settle = world.engine.holds.settle

    async def slow(*args: Any) -> bool:
        world.clock.advance(0.2)
        return await settle(*args)

    world.engine.holds.settle = slow  # type: ignore[method-assign]
    wait = await world.engine.reconcile(key)
    assert wait is not None and wait < 1, "nobody else would look again"
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}


async def test_a_worker_that_is_known_not_to_answer_is_not_waited_for(world: World) -> None:
    world.member("east", remote=True)
    east = gated(world, "east")
    east.gate.clear()
    east._problem = lambda: "no sign of life"
    async with asyncio.timeout(1):
        await world.engine.reconcile(world.workload("a"))
    assert east.asked == []


async def test_a_confirmation_is_for_who_leads(world: World) -> None:
    """It lifts fences: one that comes late could start what the next leader has moved."""
    world.member("east", remote=True)
    key = world.workload("db", kind="StatefulSet")
    world.engine.holds._remaining = lambda: 0.0
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}
    east: Any = world.fleet.admissions["east"]
    assert east.confirmed == []
    world.engine.holds._remaining = lambda: 10.0
    await world.settle(key)
    assert [id_ for id_, _ in east.confirmed] == ["uid-db"]


@pytest.mark.parametrize("evicted", [False, True])
async def test_a_cluster_that_is_back_while_others_are_asked_keeps_its_work(world: World, evicted: bool) -> None:
    """Rule 4: the member returns before a new winner is stored."""
    world.member("east")
    key = world.workload("a")
    await world.settle(key)
    # The fault is not ours: the other one answers, though it takes nothing.
    world.member("north", ready=False)
    if evicted:
        world.lose("east")
        world.clock.advance(901)
        await world.settle(key)
        assert world.clusters(key) is None, "it fitted nowhere else"
    world.member("west", remote=True)
    west = gated(world, "west")
    west.gate.clear()
    if not evicted:
        world.lose("east")
        world.clock.advance(901)
    task = asyncio.create_task(world.engine.reconcile(key))
    await world.until(lambda: bool(west.asked))
    world.bring_back("east")
    west.gate.set()
    await task
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}
    assert not [id_ for id_, _ in west.confirmed]


async def test_a_copy_that_comes_to_light_while_others_are_asked_is_waited_for(world: World) -> None:
    world.member("east")
    key = world.workload("a", atMostOnce=True)
    await world.settle(key)
    world.edit(key, suspend=True)
    await world.settle(key)
    world.change("east", ready=False)
    world.member("west", remote=True)
    west = gated(world, "west")
    west.gate.clear()
    world.edit(key, suspend=False)
    task = asyncio.create_task(world.engine.reconcile(key))
    await world.until(lambda: bool(west.asked))
    # Its suspension never came there, and the cluster is gone.
    world.report(key, copies=[{"cluster": "east", "state": "LeftBehind", "message": ""}])
    world.lose("east")
    west.gate.set()
    await task
    assert world.clusters(key) is None
    assert world.condition(key, "Scheduled")["reason"] == "CopyRunning"


async def test_impossible_requests_are_rejected_with_the_reason(world: World) -> None:
    world.member("east")
    key = world.workload("job-a", cpu="lots")
    await world.settle(key)
    assert world.condition(key, "Scheduled")["reason"] == "Invalid"
    assert "'lots' is no Kubernetes quantity" in world.condition(key, "Scheduled")["message"]


async def test_a_member_that_has_just_come_is_read_before_others_get_everything(world: World) -> None:
    world.member("east")
    west = world.member("west")
    problem = ["its nodes and pods are not read yet"]
    world.fleet.admissions["west"] = LocalAdmission(west, world.clock, ttl=30.0, problem=lambda: problem[0])
    world.fleet.joined("west", world.clock.monotonic())
    key = world.workload("web", kind="ReplicaSet", count=4, mode="Divided")
    assert await world.engine.reconcile(key) == BEING_READ
    assert world.clusters(key) is None
    problem[0] = ""
    await world.settle(key)
    assert world.clusters(key) == {"east": 2, "west": 2}


async def test_a_member_that_cannot_be_read_is_not_waited_for_long(world: World) -> None:
    world.member("east")
    west = world.member("west")
    world.fleet.admissions["west"] = LocalAdmission(west, world.clock, ttl=30.0, problem=lambda: "it does not answer")
    world.fleet.joined("west", world.clock.monotonic())
    key = world.workload("web", kind="ReplicaSet", count=2, mode="Divided")
    await world.settle(key)
    assert world.clusters(key) is None
    world.clock.advance(JOINING)
    await world.settle(key)
    assert world.clusters(key) == {"east": 2}


async def test_an_empty_fleet_says_so(world: World) -> None:
    key = world.workload("job-a")
    await world.settle(key)
    assert world.condition(key, "Scheduled")["message"] == "the fleet has no member"


async def test_what_waits_is_not_written_again_for_mere_numbers(world: World) -> None:
    world.member("east")
    key = world.workload("job-a", cpu="9")
    await world.settle(key)
    writes = len(world.store.history)
    for number in range(3):
        world.states["east"].upsert_pod(pod(f"p{number}", "500m", "east-n0"))
        await world.settle(key)
    assert len(world.store.history) == writes
    world.clock.advance(31)
    await world.settle(key)
    assert len(world.store.history) == writes + 1


# Policies.


async def test_cluster_selectors_and_names(world: World) -> None:
    world.policy(name="eu", clusterSelector={"matchLabels": {"region": "eu"}}, resourceSelectors=[{"kind": "Job"}])
    world.member("east", labels={"region": "us"})
    world.member("west", labels={"region": "eu"})
    key = world.workload("job-a")
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}
    assert world.status(key)["policy"] == "eu"
    refused = {i["cluster"]: i["message"] for i in world.status(key)["nominated"] if i["state"] == "Refused"}
    assert refused["east"] == "ClusterSelector: policy eu wants region=eu"


async def test_duplicated_deployments_follow_the_fleet(world: World) -> None:
    world.policy(type="Duplicated")
    world.member("east")
    key = world.workload("web", kind="Deployment", count=3, cpu="100m", mode="Any")
    await world.settle(key)
    assert world.clusters(key) == {"east": 3}
    world.member("west")
    await world.settle(key)
    assert world.clusters(key) == {"east": 3, "west": 3}
    assert world.status(key)["placement"]["duplicated"] is True, "the reconciler must not take them for shares"
    world.edit(key, count=2)
    await world.settle(key)
    assert world.clusters(key) == {"east": 2, "west": 2}


async def test_weights_divide(world: World) -> None:
    weights = [{"clusterNames": ["east"], "weight": 3}, {"clusterNames": ["west"], "weight": 1}]
    world.policy(type="Divided", divided={"strategy": "StaticWeight", "weights": weights})
    world.member("east")
    world.member("west")
    world.member("north")
    key = world.workload("web", kind="Deployment", count=8, cpu="100m", mode="Any")
    await world.settle(key)
    assert world.clusters(key) == {"east": 6, "west": 2}


async def test_a_stateful_set_scales_in_place(world: World) -> None:
    world.member("east")
    world.member("west")
    key = world.workload("db", kind="StatefulSet", count=1, cpu="1")
    await world.settle(key)
    home = next(iter(world.clusters(key) or {}))
    world.edit(key, count=3)
    await world.settle(key)
    assert world.clusters(key) == {home: 3}
    assert world.states[home].capacity.free["cpu"] == 1000


async def test_a_duplicate_comes_to_a_cluster_once_its_conflict_is_over(world: World) -> None:
    world.member("east")
    world.member("west")
    key = world.workload("ds", kind="DaemonSet", count=0, mode="Duplicated")
    await world.settle(key)
    world.report(key, copies=[{"cluster": "east", "state": "Conflict", "message": "ds is foreign"}])
    await world.settle(key)
    world.report(key, copies=[])
    assert await world.engine.reconcile(key) == pytest.approx(30)
    assert world.clusters(key) == {"west": 0}
    world.clock.advance(301)
    await world.settle(key)
    assert world.clusters(key) == {"east": 0, "west": 0}


async def test_a_duplicate_waits_for_a_worker_that_does_not_answer(world: World) -> None:
    world.member("east")
    world.member("west", remote=True)
    broken = world.fleet.admissions["west"]

    async def fails(ask: Any, ttl: float | None = None) -> Answer:
        raise MemberUnreachable("its worker is away")

    works, broken.reserve = broken.reserve, fails  # type: ignore[method-assign]
    key = world.workload("ds", kind="DaemonSet", count=0, mode="Duplicated")
    await world.settle(key)
    assert world.clusters(key) == {"east": 0}
    assert await world.engine.reconcile(key) == pytest.approx(30)
    broken.reserve = works  # type: ignore[method-assign]
    await world.settle(key)
    assert world.clusters(key) == {"east": 0, "west": 0}


# What is placed and finds no room says so.


def told(world: World, reason: str) -> list[str]:
    return [message for _, said, message in world.events if said == reason]


async def test_what_fits_no_node_is_placed_and_says_why_once(world: World) -> None:
    world.policy(type="Divided", divided={"strategy": "StaticWeight"})
    east = world.member("east", node("east-n0", cpu="8"))
    world.member("west", node("west-n0", cpu="4"))
    key = world.workload("web", kind="Deployment", count=2, cpu="500", mode="Any")
    await world.settle(key)
    assert world.clusters(key) == {"east": 1, "west": 1}, "weights count, whatever room there is"
    fits = world.condition(key, "Fits")
    assert (fits["status"], fits["reason"]) == ("False", "NoRoom")
    assert "east: no room on 1 of 1 nodes; nearest east-n0: asks cpu 500, free 8;" in fits["message"]
    assert "west: " in fits["message"]
    world.clock.advance(60)
    assert (await world.engine.reconcile(key) or 0) > 0, "it is looked at again"
    world.edit(key, count=4)
    await world.settle(key)
    assert told(world, "NoRoom") == [fits["message"]], "one event, however often it is looked at"
    east.upsert_node(node("east-n1", cpu="4k"))
    await world.settle(key)
    assert world.condition(key, "Fits")["status"] == "True"


async def test_what_runs_after_all_fits(world: World) -> None:
    """Its own pods may have taken the last room: nobody has room for one more, and all is well."""
    world.policy(type="Divided", divided={"strategy": "StaticWeight"})
    world.member("east", node("east-n0", cpu="1"))
    key = world.workload("web", kind="Deployment", count=1, cpu="2", mode="Any")
    await world.settle(key)
    assert world.condition(key, "Fits")["status"] == "False"
    ready = {"type": "PodsReady", "status": "True", "lastTransitionTime": "2000-01-01T00:00:00Z"}
    world.report(key, conditions=[*world.status(key)["conditions"], ready])
    await world.settle(key)
    assert world.condition(key, "Fits")["status"] == "False", "ready was said of what ran before"
    world.clock.advance(31)
    await world.settle(key)
    assert world.condition(key, "Fits")["status"] == "True"


async def test_pods_that_wait_for_a_node_say_why(world: World) -> None:
    """The template of a placed Deployment grew: nothing is placed anew, and its new pods fit nowhere."""
    world.policy(type="Divided", divided={"strategy": "StaticWeight"})
    east = world.member("east")
    key = world.workload("web", kind="Deployment", count=1, cpu="1", mode="Any")
    await world.settle(key)
    assert world.condition(key, "Fits") == {}
    world.edit(key, podSets=[{"name": "main", "count": 1, "requests": {"cpu": "500"}}])
    made = pod("web-x", "500", owner=("Deployment", "web"))
    made["metadata"]["creationTimestamp"] = world.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    east.upsert_pod(made)
    await world.settle(key)
    assert world.condition(key, "Fits") == {}, "it has only just been made"
    world.clock.advance(11)
    await world.settle(key)
    assert world.condition(key, "Fits")["reason"] == "NoRoom" and len(told(world, "NoRoom")) == 1
    world.edit(key, suspend=True)
    await world.settle(key)
    assert world.condition(key, "Fits") == {}
