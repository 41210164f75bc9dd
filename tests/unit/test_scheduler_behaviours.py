"""The numbered behaviours of placement, on an in-process fleet with a clock that the tests move."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from scheduler_fakes import World, gated, node, pod

from services.scheduler.matching import Taint


@pytest.fixture
def world() -> World:
    return World()


async def test_behaviour_01_identical_reservations_on_both_nothing_runs_yet(world: World) -> None:
    for name in ("east", "west"):
        world.member(name, remote=True)
        gated(world, name).gate.clear()
    key = world.workload("job-a", cpu="2")
    task = asyncio.create_task(world.engine.reconcile(key))
    await world.until(lambda: len(world.status(key).get("nominated", ())) == 2)
    east, west = gated(world, "east").asked, gated(world, "west").asked
    assert east == west
    assert len(east) == 1
    nominated = {item["cluster"]: item["state"] for item in world.status(key)["nominated"]}
    assert nominated == {"east": "Reserved", "west": "Reserved"}
    assert world.clusters(key) is None
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_behaviour_02_first_admission_wins_and_the_other_is_released(world: World) -> None:
    for name in ("east", "west"):
        world.member(name, remote=True)
        gated(world, name).gate.clear()
    key = world.workload("job-a")
    task = asyncio.create_task(world.engine.reconcile(key))
    await asyncio.sleep(0.1)
    gated(world, "east").gate.set()
    await task
    assert world.clusters(key) == {"east": 1}
    assert world.condition(key, "Admitted")["message"] == 'Admitted on "east"'
    assert world.condition(key, "Admitted")["status"] == "True"
    assert gated(world, "east").confirmed == [("uid-job-a", 0)]
    assert "uid-job-a" in gated(world, "west").released
    assert world.states["west"].ledger.get("uid-job-a") is None
    held = world.states["east"].ledger.get("uid-job-a")
    assert held is not None
    assert held.confirmed


async def test_behaviour_02_the_winner_is_stored_before_it_is_confirmed(world: World) -> None:
    world.member("east", remote=True)
    key = world.workload("job-a")
    seen: list[object] = []

    async def confirm(id_: str, attempt: int) -> bool:
        seen.append(world.clusters(key))
        return True

    gated(world, "east").confirm = confirm  # type: ignore[method-assign]
    await world.settle(key)
    assert seen == [{"east": 1}]


async def test_behaviour_03_a_finished_job_releases_its_quota_and_keeps_its_placement(world: World) -> None:
    state = world.member("east")
    key = world.workload("job-a", cpu="3")
    await world.settle(key)
    assert state.capacity.free["cpu"] == 1000
    world.report(key, conditions=[*world.status(key)["conditions"], {"type": "Finished", "status": "True"}])
    await world.settle(key)
    assert state.capacity.free["cpu"] == 4000
    assert world.clusters(key) == {"east": 1}


async def test_behaviour_04_suspended_remembers_and_resumes_where_it_ran(world: World) -> None:
    world.member("east")
    world.member("west")
    key = world.workload("job-a", cpu="3")
    first = await world.settle(key)
    assert first.placement is not None
    home = next(iter(first.placement.clusters))
    world.edit(key, suspend=True)
    await world.settle(key)
    assert world.clusters(key) is None
    assert world.status(key)["lastPlacement"]["clusters"] == [{"name": home, "replicas": 1}]
    assert world.states[home].capacity.free["cpu"] == 4000
    assert world.condition(key, "Admitted")["reason"] == "Suspended"
    # Its home is the fuller one now: it is preferred all the same.
    world.states[home].upsert_pod(pod("local", node_name=f"{home}-n0"))
    world.edit(key, suspend=False)
    await world.settle(key)
    assert world.clusters(key) == {home: 1}


async def test_behaviour_04_resumes_elsewhere_where_its_home_has_no_room(world: World) -> None:
    world.member("east")
    world.member("west")
    key = world.workload("job-a", cpu="3")
    first = await world.settle(key)
    assert first.placement is not None
    home = next(iter(first.placement.clusters))
    world.edit(key, suspend=True)
    await world.settle(key)
    world.states[home].upsert_pod(pod("local", cpu="2", node_name=f"{home}-n0"))
    world.edit(key, suspend=False)
    await world.settle(key)
    assert world.clusters(key) == {("west" if home == "east" else "east"): 1}


@pytest.mark.parametrize("number", [5, 6])
async def test_behaviour_05_06_deletion_while_a_member_is_away_releases_all(world: World, number: int) -> None:
    # The copies are the reconciler's; the scheduler must neither hold on nor place again.
    world.member("east")
    world.member("west")
    key = world.workload("job-a", cpu="3")
    first = await world.settle(key)
    assert first.placement is not None
    home = next(iter(first.placement.clusters))
    world.lose(home if number == 6 else ("west" if home == "east" else "east"))
    world.store.write(key, metadata={"deletionTimestamp": "2026-01-01T00:00:10Z"})
    await world.settle(key)
    world.clock.advance(3600)
    await world.settle(key)
    assert world.clusters(key) == {home: 1}
    assert all(state.capacity.free["cpu"] == 4000 for state in world.states.values())
    world.bring_back(home)
    del world.store.objects[key]
    assert await world.engine.reconcile(key) is None


async def test_behaviour_07_a_lost_winner_is_dispatched_again(world: World) -> None:
    world.member("east")
    key = world.workload("job-a", cpu="3")
    await world.settle(key)
    west = world.member("west")
    world.member("north", node("north-n0", cpu="1"))
    west.upsert_pod(pod("local", cpu="4", node_name="west-n0"))
    world.lose("east")
    assert await world.engine.reconcile(key) == pytest.approx(900)
    world.clock.advance(899)
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}
    world.clock.advance(2)
    await world.settle(key)
    assert world.clusters(key) is None
    assert world.status(key)["attempts"] == 1
    assert world.condition(key, "Admitted")["reason"] == "Pending"
    assert world.condition(key, "Evicted")["reason"] == "ClusterLost"
    west.remove_pod("pod-local")
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}
    assert world.status(key)["attempts"] == 1
    assert world.status(key)["placement"]["attempt"] == 1
    world.bring_back("east")
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}, "a stored winner is pinned"


async def test_behaviour_07_a_cluster_that_returns_before_a_new_winner_keeps_it(world: World) -> None:
    world.member("east")
    key = world.workload("job-a", cpu="3")
    await world.settle(key)
    world.member("west", node("west-n0", cpu="1"))
    world.member("north", node("north-n0", cpu="1"))
    world.lose("east")
    world.clock.advance(901)
    await world.settle(key)
    assert world.clusters(key) is None
    world.bring_back("east")
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}
    assert world.condition(key, "Evicted")["status"] == "False"


async def test_behaviour_07_nothing_moves_while_most_members_are_away(world: World) -> None:
    for name in ("east", "west", "north"):
        world.member(name)
    key = world.workload("job-a")
    await world.settle(key)
    before = world.clusters(key)
    assert before is not None
    world.lose("east")
    world.lose("west")
    world.lose("north") if "north" in before else None
    world.clock.advance(5000)
    await world.settle(key)
    assert world.clusters(key) == before


async def test_behaviour_07_what_must_not_run_twice_waits_for_an_operator(world: World) -> None:
    world.member("east")
    key = world.workload("web", kind="StatefulSet", count=2)
    await world.settle(key)
    world.member("west")
    world.lose("east")
    world.clock.advance(100_000)
    await world.settle(key)
    assert world.clusters(key) == {"east": 2}
    world.change("east", forgotten=True)
    await world.settle(key)
    assert world.clusters(key) == {"west": 2}


async def test_behaviour_09_a_brief_disconnect_evicts_nothing(world: World) -> None:
    world.member("east")
    world.member("west")
    key = world.workload("job-a")
    await world.settle(key)
    before, writes = world.clusters(key), len(world.store.history)
    assert before is not None
    home = next(iter(before))
    for _ in range(5):
        world.lose(home)
        await world.settle(key)
        world.clock.advance(600)
        world.bring_back(home)
        await world.settle(key)
    assert world.clusters(key) == before
    assert len(world.store.history) == writes


async def test_behaviour_19_a_foreign_object_makes_the_cluster_ineligible(world: World) -> None:
    world.member("east")
    world.member("west", node("west-n0", cpu="2"))
    world.clashes["east", "default", "Job", "job-a"] = 'a job "job-a" that is not from here exists'
    key = world.workload("job-a")
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}
    refused = {i["cluster"]: i["message"] for i in world.status(key)["nominated"] if i["state"] == "Refused"}
    assert refused["east"].startswith("NameClash: ")


async def test_behaviour_19_a_conflict_found_while_applying_moves_it(world: World) -> None:
    world.member("east")
    world.member("west", node("west-n0", cpu="3"))
    key = world.workload("job-a")
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}
    world.report(key, copies=[{"cluster": "east", "state": "Conflict", "message": "configmap settings is foreign"}])
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}
    world.report(key, copies=[])
    world.edit(key, suspend=True)
    await world.settle(key)
    world.states["west"].upsert_pod(pod("local", cpu="3", node_name="west-n0"))
    world.edit(key, suspend=False)
    await world.settle(key)
    assert world.clusters(key) is None, "east stays out of the question for a while"
    world.clock.advance(301)
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}


async def test_behaviour_20_local_jobs_count(world: World) -> None:
    east = world.member("east")
    west = world.member("west", node("west-n0", cpu="2"))
    east.upsert_pod(pod("local-a", cpu="3", node_name="east-n0", owner=("Job", "local")))
    key = world.workload("job-a", cpu="2")
    await world.settle(key)
    assert world.clusters(key) == {"west": 1}
    other = world.workload("job-b", cpu="2")
    await world.settle(other)
    assert world.clusters(other) is None
    assert "east: Capacity: no room on 1 of 1 nodes" in world.condition(other, "Scheduled")["message"]
    assert "asks cpu 2, free 1" in world.condition(other, "Scheduled")["message"]
    east.upsert_pod(pod("local-a", cpu="3", node_name="east-n0", phase="Succeeded"))
    await world.settle(other)
    assert world.clusters(other) == {"east": 1}
    assert west.ledger.get("uid-job-a") is not None


async def test_behaviour_24_a_divided_deployment_scales_stickily(world: World) -> None:
    world.policy(type="Divided", divided={"strategy": "StaticWeight"})
    world.member("east")
    world.member("west")
    key = world.workload("web", kind="Deployment", count=4, cpu="100m", mode="Any")
    await world.settle(key)
    assert world.clusters(key) == {"east": 2, "west": 2}
    assert world.condition(key, "Admitted")["message"] == 'Admitted on "east", "west"'
    seen = [world.clusters(key)]
    for count in (5, 9, 2, 1, 0, 4):
        world.edit(key, count=count)
        await world.settle(key)
        clusters = world.clusters(key)
        assert clusters is not None
        assert sum(clusters.values()) == count
        seen.append(clusters)
    for before, after in itertools.pairwise(seen):
        assert before is not None
        assert after is not None
        moved = [after.get(n, 0) - before.get(n, 0) for n in ("east", "west")]
        assert all(m >= 0 for m in moved) or all(m <= 0 for m in moved), "growing takes nothing away, nor the reverse"
    assert world.status(key)["attempts"] == 0


async def test_behaviour_24_pods_that_fit_nowhere_now_are_placed_and_pend(world: World) -> None:
    world.policy(type="Divided", divided={"strategy": "StaticWeight"})
    world.member("east", node("east-n0", cpu="1"))
    world.member("west", node("west-n0", cpu="1"))
    key = world.workload("web", kind="Deployment", count=8, cpu="1", mode="Any")
    await world.settle(key)
    assert world.clusters(key) == {"east": 4, "west": 4}
    assert world.states["east"].capacity.free["cpu"] == 0, "what fits is held"


@pytest.mark.parametrize("moment", range(4))
async def test_behaviour_29_a_restart_at_any_point_loses_and_moves_nothing(world: World, moment: int) -> None:
    world.member("east")
    world.member("west")
    keys = [world.workload(f"job-{n}", cpu="1") for n in range(8)]
    for key in keys[: moment * 2]:
        await world.settle(key)
    before = {key: world.clusters(key) for key in keys}
    world.start()
    await world.resync()
    for key in reversed(keys):
        await world.settle(key)
    after = {key: world.clusters(key) for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] is not None)
    assert all(sum((clusters or {}).values()) == 1 for clusters in after.values())
    for state in world.states.values():
        assert state.capacity.free["cpu"] == 0, "eight of one cpu fill two of four"
        assert len(state.ledger) == 4


async def test_behaviour_29_a_restart_before_the_confirmation_confirms_then(world: World) -> None:
    world.member("east", remote=True)
    key = world.workload("job-a", cpu="3")

    async def dies(id_: str, attempt: int) -> bool:
        raise asyncio.CancelledError

    admission = gated(world, "east")
    confirm, admission.confirm = admission.confirm, dies  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await world.engine.reconcile(key)
    assert world.clusters(key) == {"east": 1}
    admission.confirm = confirm  # type: ignore[method-assign]
    world.clock.advance(20)
    world.start()
    await world.resync()
    await world.settle(key)
    world.clock.advance(60)
    world.states["east"].expire(world.clock.monotonic())
    held = world.states["east"].ledger.get("uid-job-a")
    assert held is not None, "a confirmed reservation does not expire"
    assert held.confirmed


async def test_behaviour_29_a_restart_before_the_store_lets_the_reservation_expire(world: World) -> None:
    world.member("east", remote=True)
    key = world.workload("job-a", cpu="3")

    def dies() -> None:
        raise asyncio.CancelledError

    world.store.before_patch.append(dies)
    with pytest.raises(asyncio.CancelledError):
        await world.engine.reconcile(key)
    assert world.clusters(key) is None
    del world.store.objects[key]
    world.start()
    await world.resync()
    assert world.states["east"].capacity.free["cpu"] == 1000
    world.clock.advance(31)
    world.states["east"].expire(world.clock.monotonic())
    assert world.states["east"].capacity.free["cpu"] == 4000


async def test_behaviour_31_divided_by_capacity_and_drained(world: World) -> None:
    world.policy(type="Divided", divided={"strategy": "Capacity"})
    world.member("a", node("a-n0", cpu="10"))
    world.member("b", node("b-n0", cpu="5"))
    world.member("c", node("c-n0", cpu="5"))
    key = world.workload("web", kind="Deployment", count=12, cpu="1", mode="Any")
    await world.settle(key)
    assert world.clusters(key) == {"a": 6, "b": 3, "c": 3}
    world.change("c", taints=(Taint("reclock.dev/maintenance", "", "NoExecute"),))
    await world.settle(key)
    assert world.clusters(key) == {"a": 8, "b": 4}


async def test_29_what_went_while_another_manager_led_is_forgotten(world: World) -> None:
    world.member("east")
    key = world.workload("big", cpu="99")
    await world.settle(key)
    assert world.engine.waiting == {key}
    del world.store.objects[key]
    assert world.engine.gone_keys() == [key]
    await world.engine.reconcile(key)
    assert world.engine.waiting == set() and world.engine.gone_keys() == []
