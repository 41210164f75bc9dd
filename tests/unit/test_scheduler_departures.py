"""What leaves a cluster: because it is lost, its provider dropped it, or somebody cordons or drains it."""

from __future__ import annotations

import asyncio

import pytest
from scheduler_fakes import START, World, node

from services.scheduler.matching import Taint

CORDON = Taint("reclock.dev/maintenance", "", "NoSchedule")
DRAIN = Taint("reclock.dev/maintenance", "", "NoExecute", START)


@pytest.fixture
def world() -> World:
    return World()


# Rule 4 and 9: loss, departure from the fleet.


async def test_a_removed_cluster_is_waited_for_like_a_lost_one(world: World) -> None:
    world.member("east")
    key = world.workload("job-a")
    await world.settle(key)
    world.member("west")
    del world.fleet.members["east"], world.fleet.admissions["east"]
    world.fleet.touch()
    await world.settle(key)
    assert world.status(key)["lost"] == [{"cluster": "east", "since": "2026-01-01T00:00:00Z"}]
    world.clock.advance(600)
    world.start()
    await world.resync()
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}
    world.clock.advance(301)
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}
    assert "lost" not in world.status(key)


async def test_a_removed_cluster_that_returns_keeps_its_work(world: World) -> None:
    east = world.member("east")
    key = world.workload("job-a")
    await world.settle(key)
    world.member("west")
    member, admission = world.fleet.members.pop("east"), world.fleet.admissions.pop("east")
    await world.settle(key)
    world.fleet.members["east"], world.fleet.admissions["east"] = member, admission
    world.fleet.touch()
    await world.settle(key)
    world.clock.advance(5000)
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}
    assert "lost" not in world.status(key)
    assert east.ledger.get("uid-job-a") is not None


async def test_what_discovery_calls_lost_but_answers_is_not_moved(world: World) -> None:
    world.member("east")
    key = world.workload("job-a")
    await world.settle(key)
    world.member("west")

    async def answers(cluster: str) -> bool:
        return True

    world.engine._probe = answers
    world.lose("east")
    world.clock.advance(1000)
    assert await world.engine.reconcile(key) == pytest.approx(5)
    assert world.clusters(key) == {"east": 1}


async def test_a_new_cluster_is_a_candidate_for_what_waits(world: World) -> None:
    world.member("east", node("east-n0", cpu="1"))
    key = world.workload("job-a", cpu="2")
    await world.settle(key)
    assert world.clusters(key) is None
    assert key in world.engine.waiting
    world.member("north")
    await world.settle(key)
    assert world.clusters(key) == {"north": 1}
    assert key not in world.engine.waiting


async def test_the_share_of_a_lost_cluster_goes_to_the_others(world: World) -> None:
    world.policy(type="Divided", divided={"strategy": "StaticWeight"})
    for name in ("a", "b", "c"):
        world.member(name)
    key = world.workload("web", kind="Deployment", count=6, cpu="100m", mode="Any")
    await world.settle(key)
    world.lose("c")
    world.clock.advance(901)
    await world.settle(key)
    assert world.clusters(key) == {"a": 3, "b": 3}
    assert world.status(key)["attempts"] == 1


# Rule 9: a cluster that its provider dropped.


async def test_a_removed_cluster_is_left_after_the_time_out_only(world: World) -> None:
    for name in ("east", "west", "north"):
        world.member(name)
    key, pair = world.workload("job-a"), world.workload("db", kind="StatefulSet", count=2)
    await world.settle(key)
    await world.settle(pair)
    home = next(iter(world.clusters(pair) or {}))
    world.change(home, leaving_since=world.clock.now())
    fresh = world.workload("job-b")
    await world.settle(fresh)
    assert home not in (world.clusters(fresh) or {}), "nothing new goes there"
    world.clock.advance(899)
    await world.settle(pair)
    assert world.clusters(pair) == {home: 2}
    world.report(pair, copies=[{"cluster": home, "state": "Applied"}])
    world.clock.advance(2)
    await world.settle(pair)
    assert world.clusters(pair) is None, "it is reachable: the old copy is stopped first"
    assert world.condition(pair, "Evicted")["reason"] == "ClusterRemoved"
    world.report(pair, copies=[])
    await world.settle(pair)
    moved = world.clusters(pair) or {}
    assert sum(moved.values()) == 2
    assert home not in moved


async def test_a_removed_cluster_that_is_back_in_time_keeps_its_work(world: World) -> None:
    for name in ("east", "west", "north"):
        world.member(name)
    key = world.workload("job-a")
    await world.settle(key)
    before = world.clusters(key) or {}
    home = next(iter(before))
    world.change(home, leaving_since=world.clock.now())
    world.clock.advance(600)
    await world.settle(key)
    world.change(home, leaving_since=None)
    world.clock.advance(5000)
    await world.settle(key)
    assert world.clusters(key) == before


async def test_what_was_stopping_on_a_removed_cluster_that_vanished_waits(world: World) -> None:
    """Nobody knows whether it has stopped, until the worker beside it has, or somebody gives the cluster up."""
    for name in ("east", "west", "north"):
        world.member(name)
    key = world.workload("db", kind="StatefulSet", count=2)
    await world.settle(key)
    home = next(iter(world.clusters(key) or {}))
    world.change(home, leaving_since=world.clock.now())
    world.report(key, copies=[{"cluster": home, "state": "Applied"}])
    world.clock.advance(901)
    await world.settle(key)
    assert world.condition(key, "Evicted")["reason"] == "ClusterRemoved"
    world.lose(home)
    world.report(key, copies=[{"cluster": home, "state": "LeftBehind"}])
    await world.settle(key)
    assert world.clusters(key) is None
    assert world.condition(key, "Scheduled")["reason"] == "CopyRunning"
    world.fleet.fence_wait = lambda cluster, limit: 5.0
    await world.settle(key)
    assert world.clusters(key) is None
    world.change(home, forgotten=True)
    await world.settle(key)
    assert home not in (world.clusters(key) or {home: 0})


@pytest.mark.parametrize("state", ["Applied", "LeftBehind"])
async def test_a_job_that_must_not_run_twice_resumes_where_its_suspension_never_came(world: World, state: str) -> None:
    world.member("east")
    key = world.workload("job-a", atMostOnce=True)
    other = world.workload("job-b")
    await world.settle(key)
    await world.settle(other)
    world.member("west")
    for job in (key, other):
        world.report(job, copies=[{"cluster": "east", "state": state}])
    world.lose("east")
    for suspend in (True, False):
        for job in (key, other):
            world.edit(job, suspend=suspend)
            await world.settle(job)
    assert world.clusters(key) is None, "its pods may still run on east"
    assert world.condition(key, "Scheduled")["reason"] == "CopyRunning"
    assert world.clusters(other) == {"west": 1}, "who may run twice need not wait"
    world.bring_back("east")
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}


async def test_a_job_that_its_worker_has_stopped_resumes_elsewhere(world: World) -> None:
    world.member("east")
    key = world.workload("job-a", atMostOnce=True)
    await world.settle(key)
    world.member("west")
    world.report(key, copies=[{"cluster": "east", "state": "LeftBehind"}])
    world.lose("east")
    for suspend in (True, False):
        world.edit(key, suspend=suspend)
        await world.settle(key)
    assert world.clusters(key) is None
    world.fleet.fence_wait = lambda cluster, limit: 0.0
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}


async def test_a_hold_that_is_forgotten_while_it_is_released_is_no_error(world: World) -> None:
    world.member("east")
    key = world.workload("job-a")
    await world.settle(key)
    holds = world.engine.holds
    release = asyncio.create_task(holds.release("uid-job-a"))
    # Before the release's own calls run, as a worker's reconnection does it.
    asyncio.get_running_loop().call_soon(holds.forget_confirmed, "east")
    await release
    assert not holds.of("uid-job-a")


async def test_most_of_the_fleet_removed_at_once_moves_nothing_but_what_is_forgotten(world: World) -> None:
    for name in ("east", "west", "north"):
        world.member(name)
    key = world.workload("job-a")
    await world.settle(key)
    before = world.clusters(key) or {}
    for name in ("east", "west"):
        world.change(name, leaving_since=world.clock.now())
    home = next(iter(before))
    world.change(home, leaving_since=world.clock.now())
    world.clock.advance(5000)
    await world.settle(key)
    assert world.clusters(key) == before
    world.change(home, forgotten=True)
    await world.settle(key)
    assert world.clusters(key) != before


async def test_a_duplicate_leaves_a_removed_cluster_that_does_not_answer(world: World) -> None:
    for name in ("east", "west", "north"):
        world.member(name)
    key = world.workload("agent", kind="DaemonSet", mode="Duplicated")
    await world.settle(key)
    assert set(world.clusters(key) or {}) == {"east", "west", "north"}
    world.change("east", leaving_since=world.clock.now())
    world.lose("east")
    world.clock.advance(901)
    await world.settle(key)
    assert set(world.clusters(key) or {}) == {"west", "north"}


async def test_a_forgotten_removed_cluster_is_left_even_when_its_share_fits_nowhere(world: World) -> None:
    world.member("east")
    world.member("west")
    key = world.workload("web", kind="Deployment", mode="Any", count=2)
    await world.settle(key)
    before = world.clusters(key) or {}
    assert set(before) == {"east", "west"}
    world.change("west", taints=(CORDON,))
    world.change("east", leaving_since=world.clock.now(), forgotten=True)
    await world.settle(key)
    assert world.clusters(key) == {"west": before["west"]}


# Rule 11: cordon and drain.


async def test_a_cordoned_cluster_keeps_its_work_and_gets_none(world: World) -> None:
    world.policy(type="Divided", divided={"strategy": "StaticWeight"})
    world.member("east")
    world.member("west")
    key = world.workload("web", kind="Deployment", count=4, cpu="100m", mode="Any")
    await world.settle(key)
    world.change("east", taints=(CORDON,))
    await world.settle(key)
    assert world.clusters(key) == {"east": 2, "west": 2}
    world.edit(key, count=6)
    await world.settle(key)
    assert world.clusters(key) == {"east": 2, "west": 4}
    job = world.workload("job-a")
    await world.settle(job)
    assert world.clusters(job) == {"west": 1}


async def test_a_drained_cluster_gives_its_work_away(world: World) -> None:
    world.policy(type="Divided", divided={"strategy": "StaticWeight"})
    world.member("east")
    world.member("west")
    web = world.workload("web", kind="Deployment", count=4, cpu="100m", mode="Any")
    daemon = world.workload("ds", kind="DaemonSet", count=0, mode="Duplicated")
    job = world.workload("job-a", cpu="100m")
    for key in (web, daemon, job):
        await world.settle(key)
    home = next(iter(world.clusters(job) or {}))
    world.change(home, taints=(DRAIN,))
    other = "west" if home == "east" else "east"
    for key in (web, daemon, job):
        await world.settle(key)
    assert world.clusters(web) == {other: 4}
    assert world.clusters(daemon) == {other: 0}
    assert world.clusters(job) == {home: 1}, "Jobs finish where they run"
    world.change(home, taints=())
    await world.settle(daemon)
    assert world.clusters(daemon) == {"east": 0, "west": 0}


async def test_a_drain_waits_for_the_toleration(world: World) -> None:
    toleration = {"key": DRAIN.key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    world.policy(type="Divided", divided={"strategy": "StaticWeight"}, tolerations=[toleration])
    world.member("east")
    world.member("west")
    key = world.workload("web", kind="Deployment", count=2, cpu="100m", mode="Any")
    await world.settle(key)
    world.change("east", taints=(DRAIN,))
    assert await world.engine.reconcile(key) == pytest.approx(60)
    world.clock.advance(61)
    await world.settle(key)
    assert world.clusters(key) == {"west": 2}


async def test_a_stateful_set_stops_before_it_starts_elsewhere(world: World) -> None:
    world.member("east")
    key = world.workload("db", kind="StatefulSet", count=2)
    await world.settle(key)
    world.member("west")
    world.report(key, copies=[{"cluster": "east", "state": "Applied"}])
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    assert world.clusters(key) is None
    assert world.condition(key, "Scheduled")["reason"] == "CopyRunning"
    world.report(key, copies=[{"cluster": "east", "state": "Removing"}])
    await world.settle(key)
    assert world.clusters(key) is None
    world.report(key, copies=[])
    await world.settle(key)
    assert world.clusters(key) == {"west": 2}


async def test_pods_with_claims_are_not_moved_by_a_drain(world: World) -> None:
    world.member("east")
    key = world.workload("db", kind="StatefulSet", constraints={"volumeClaims": ["data"]})
    await world.settle(key)
    world.member("west")
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}
