"""Drains: what moves, what stays and says why, and what a drain that is stopped half-way gives back."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_fakes import START, World

from services.scheduler.matching import Taint
from services.scheduler.workload import Key

DRAIN = Taint("reclock.dev/maintenance", "", "NoExecute", START)


@pytest.fixture
def world() -> World:
    made = World()
    made.policy(type="Divided", divided={"strategy": "StaticWeight"})
    made.member("east")
    made.member("west")
    return made


async def web(world: World, count: int = 4, **spec: Any) -> Key:
    key = world.workload("web", kind="Deployment", count=count, cpu="100m", mode="Any", **spec)
    await world.settle(key)
    assert world.clusters(key) == {"east": count // 2, "west": count // 2}
    return key


def divided(world: World, key: Key, **split: int) -> None:
    """What the reconciler says of its only ReplicaSet."""
    world.store.write(key, status={**world.status(key), "divisions": {"web-1": split}})


async def test_what_is_left_is_noted_until_nothing_is_there(world: World) -> None:
    key = await web(world)
    divided(world, key, east=2, west=2)
    world.report(key, copies=[{"cluster": "east", "state": "Applied"}, {"cluster": "west", "state": "Applied"}])
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    assert world.clusters(key) == {"west": 4}
    assert world.status(key)["moving"] == [
        {"cluster": "east", "replicas": 2, "since": "2026-01-01T00:00:00Z", "reason": "Drained"}
    ]
    world.clock.advance(60)
    world.edit(key, count=6)
    await world.settle(key)
    assert world.status(key)["moving"][0]["since"] == "2026-01-01T00:00:00Z", "a new size is no new drain"
    divided(world, key, west=6)
    await world.settle(key)
    assert "moving" in world.status(key), "its copy is still there"
    world.report(key, copies=[{"cluster": "west", "state": "Applied"}])
    await world.settle(key)
    assert "moving" not in world.status(key)


@pytest.mark.parametrize(("left", "want"), [(2, {"east": 2, "west": 2}), (1, {"east": 1, "west": 3}), (0, {"west": 4})])
async def test_a_drain_that_is_stopped_keeps_what_has_not_left(world: World, left: int, want: dict[str, int]) -> None:
    key = await web(world)
    divided(world, key, east=2, west=2)
    world.report(key, copies=[{"cluster": "east", "state": "Applied"}])
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    divided(world, key, west=4, **({"east": left} if left else {}))
    world.start()
    world.policy(type="Divided", divided={"strategy": "StaticWeight"})
    world.change("east", taints=())
    await world.settle(key)
    assert world.clusters(key) == want, "also by a manager that has just started"
    assert bool(world.status(key).get("moving")) == (not left)
    writes = len(world.store.history)
    await world.settle(key)
    assert len(world.store.history) == writes, "and that is the end of it"


async def test_a_stopped_drain_does_not_split_what_is_single(world: World) -> None:
    world.policy(type="Single")
    key = world.workload("web", kind="Deployment", count=4, cpu="100m", mode="Any")
    await world.settle(key)
    assert world.clusters(key) == {"east": 4}
    for left, want in ((4, {"east": 4}), (3, {"west": 4})):
        world.change("east", taints=(DRAIN,))
        divided(world, key, east=4)
        await world.settle(key)
        assert world.clusters(key) == {"west": 4}
        divided(world, key, east=left, west=4)
        world.change("east", taints=())
        await world.settle(key)
        assert world.clusters(key) == want


async def test_volumes_stay_and_say_so(world: World) -> None:
    key = await web(world, constraints={"volumeClaims": ["data"]})
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    await world.settle(key)
    assert world.clusters(key) == {"east": 2, "west": 2}
    said = world.condition(key, "DrainBlocked")
    assert (said["status"], said["reason"]) == ("True", "HasVolumes")
    assert "stays on east" in said["message"] and "moveVolumes: Discard" in said["message"]
    assert [event[1] for event in world.events].count("DrainBlocked") == 1
    world.change("east", taints=())
    await world.settle(key)
    assert world.condition(key, "DrainBlocked")["status"] == "False"


async def test_volumes_move_where_the_policy_discards_them(world: World) -> None:
    key = await web(world, constraints={"volumeClaims": ["data"]})
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    world.policy(type="Divided", divided={"strategy": "StaticWeight"}, moveVolumes="Discard")
    await world.settle(key)
    assert world.clusters(key) == {"west": 4}
    assert world.condition(key, "DrainBlocked")["status"] == "False"


async def test_with_nowhere_to_go_it_stays_and_says_so(world: World) -> None:
    key = await web(world)
    world.change("east", taints=(DRAIN,))
    world.change("west", taints=(Taint("reclock.dev/maintenance", "", "NoSchedule"),))
    await world.settle(key)
    assert world.clusters(key) == {"east": 2, "west": 2}
    said = world.condition(key, "DrainBlocked")
    assert said["reason"] == "NowhereToGo" and "west: Taint" in said["message"]
    world.change("west", taints=())
    await world.settle(key)
    assert world.clusters(key) == {"west": 4}
    assert world.condition(key, "DrainBlocked")["status"] == "False"


async def test_jobs_finish_where_they_run(world: World) -> None:
    key = world.workload("job-a")
    await world.settle(key)
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}
    assert world.condition(key, "DrainBlocked")["reason"] == "JobRuns"


@pytest.mark.parametrize("once", [False, True])
async def test_jobs_are_suspended_then_dispatched_again(world: World, once: bool) -> None:
    world.policy(drainJobs="Suspend")
    key = world.workload("job-a", atMostOnce=once)
    await world.settle(key)
    world.report(key, copies=[{"cluster": "east", "state": "Applied"}])
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    assert world.clusters(key) is None
    assert world.condition(key, "Evicted")["reason"] == "Drained"
    world.report(key, copies=[{"cluster": "east", "state": "Removing"}])
    await world.settle(key)
    assert world.clusters(key) is None, "its pods are still there"
    world.report(key, copies=[{"cluster": "east", "state": "Suspended"}])
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}


async def test_a_job_is_not_suspended_with_nowhere_to_go(world: World) -> None:
    world.policy(drainJobs="Suspend")
    key = world.workload("job-a", cpu="3")
    other = world.workload("job-b", cpu="3")
    await world.settle(key)
    await world.settle(other)
    assert (world.clusters(key), world.clusters(other)) == ({"east": 1}, {"west": 1})
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}
    assert world.condition(key, "DrainBlocked")["message"] == "stays on east: no other cluster takes it (west: Capacity)"


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
async def test_what_was_told_to_stop_stays_if_the_drain_is_stopped(world: World, kind: str) -> None:
    world.policy(drainJobs="Suspend")
    key = world.workload("one", kind=kind)
    await world.settle(key)
    world.report(key, copies=[{"cluster": "east", "state": "Applied"}])
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    assert world.clusters(key) is None
    world.report(key, copies=[{"cluster": "east", "state": "Removing"}])
    world.change("east", taints=())
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}


async def test_a_stateful_set_is_not_stopped_with_nowhere_to_go(world: World) -> None:
    key = world.workload("db", kind="StatefulSet", count=2, cpu="1500m")
    filler = world.workload("filler", cpu="3")
    await world.settle(key)
    await world.settle(filler)
    assert (world.clusters(key), world.clusters(filler)) == ({"east": 2}, {"west": 1})
    world.report(key, copies=[{"cluster": "east", "state": "Applied"}])
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    assert world.clusters(key) == {"east": 2}
    assert world.condition(key, "DrainBlocked")["reason"] == "NowhereToGo"


async def test_a_stateful_set_that_was_stopping_on_a_cluster_that_vanished_waits(world: World) -> None:
    """Nobody knows whether it has stopped: two copies would have the same ordinals."""
    key = world.workload("db", kind="StatefulSet")
    await world.settle(key)
    world.report(key, copies=[{"cluster": "east", "state": "Applied"}])
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    world.lose("east")
    world.report(key, copies=[{"cluster": "east", "state": "LeftBehind"}])
    await world.settle(key)
    assert world.clusters(key) is None
    assert world.condition(key, "Scheduled")["reason"] == "CopyRunning"
    world.change("east", forgotten=True)
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}


async def test_its_room_is_kept_while_it_stops(world: World) -> None:
    key = world.workload("db", kind="StatefulSet", cpu="3")
    await world.settle(key)
    world.report(key, copies=[{"cluster": "east", "state": "Applied"}])
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    rival = world.workload("job-a", cpu="3")
    await world.settle(rival)
    assert world.clusters(rival) is None
    world.report(key, copies=[])
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}


async def test_a_policy_that_tolerates_the_drain_is_named(world: World) -> None:
    key = await web(world)
    toleration = {"key": DRAIN.key, "operator": "Exists"}
    world.policy(type="Divided", divided={"strategy": "StaticWeight"}, tolerations=[toleration])
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    assert world.clusters(key) == {"east": 2, "west": 2}
    assert world.condition(key, "DrainBlocked")["reason"] == "Tolerated"


async def test_another_writer_of_the_division_wins_over_a_stopped_drain(world: World) -> None:
    """The reconciler took one more away in the same moment: the placement counts what is there after it."""
    key = await web(world)
    divided(world, key, east=2, west=2)
    world.change("east", taints=(DRAIN,))
    await world.settle(key)
    world.change("east", taints=())
    world.store.before_patch.append(lambda: divided(world, key, east=1, west=4))
    await world.settle(key)
    assert world.clusters(key) == {"east": 1, "west": 3}
