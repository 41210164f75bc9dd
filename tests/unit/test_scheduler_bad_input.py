"""What nobody has checked (Workloads that somebody submits, odd policies) becomes a condition, and stops nobody else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from scheduler_fakes import World, node

from services.common.kube import quantity
from services.common.kube.times import parse_time
from services.scheduler import explain
from services.scheduler import policy as policies
from services.scheduler.config import SchedulerConfig
from services.scheduler.matching import Taint
from services.scheduler.objects import ObjectPlacer
from services.scheduler.policy import LONGEST, Target


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("1e400000", 2**63 - 1), ("1e99999999999999999999999", 2**63 - 1), ("-9e99", 1 - 2**63), ("9E", 9 * 10**18),
        ("99Ei", 2**63 - 1), ("0e999999999", 0), ("5e3", 5000),
    ],
)  # fmt: skip
def test_quantities_are_capped_as_in_kubernetes(text: str, units: int) -> None:
    assert quantity.parse(text) == units * 1000
    assert len(quantity.render(quantity.parse(text))) < 30


def test_the_smallest_quantity_is_a_thousandth() -> None:
    assert quantity.parse("1e-999999999999") == 1
    assert quantity.parse("-1e-999999999999") == 0


@pytest.mark.parametrize(
    "constraints",
    [
        {"tolerations": ["all"]}, {"nodeSelector": "disk=ssd"}, {"nodeSelector": {"disk": 1}}, {"affinity": ["x"]},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": ["x"]}}}},
        {"tolerations": [{"key": 5}]}, {"priority": "high"},
    ],
)  # fmt: skip
async def test_constraints_of_wrong_types_are_refused_and_hold_nothing(world: World, constraints: dict[str, Any]) -> None:
    east = world.member("east", node("east-n0"))
    good = world.workload("good")
    bad = world.workload("bad", constraints=constraints)
    await world.settle(bad)
    assert world.condition(bad, "Scheduled")["reason"] == "Invalid"
    await world.settle(good)
    # A reservation of the bad one would stay, and this would end at it, for everybody.
    east.upsert_node(node("east-n1"))
    assert len(east.ledger) == 1


async def test_more_pods_than_a_placement_can_say_are_refused(world: World) -> None:
    world.member("east")
    key = world.workload("many")
    pods = {"name": "main", "count": 2**31 - 1, "requests": {}}
    world.edit(key, podSets=[pods, {**pods, "name": "more"}])
    await world.settle(key)
    assert world.condition(key, "Scheduled")["reason"] == "Invalid"


async def test_times_without_end_are_ten_years(world: World) -> None:
    """Else every step of what the policy is for fails, and the heartbeats of its clusters with them."""
    toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2**63 - 1}
    world.policy(
        workerLostTimeout=2**63 - 1, podsReadyTimeout=10**12, admitTimeout=10**18, tolerations=[toleration, {"key": "a"}]
    )
    found = world.engine.policies[0]
    assert {found.worker_lost_timeout, found.pods_ready_timeout, found.admit_timeout} == {LONGEST}
    assert [item.get("tolerationSeconds") for item in found.tolerations] == [LONGEST, None]
    world.member("east")
    key = world.workload("job-a")
    await world.settle(key)
    world.lose("east")
    await world.settle(key)
    assert world.clusters(key) == {"east": 1}


async def test_a_taint_of_the_last_day_is_tolerated_without_end(world: World) -> None:
    world.policy(tolerations=[{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}])
    world.member("east")
    key = world.workload("job-a")
    await world.settle(key)
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    world.change("east", taints=(Taint("reclock.dev/maintenance", "", "NoExecute", last),))
    await world.settle(key)
    assert world.condition(key, "DrainBlocked")["reason"] == "Tolerated"


async def test_a_time_without_a_zone_is_utc(world: World) -> None:
    world.member("east")
    key = world.workload("job-a")
    world.report(key, requeueAt="2026-01-01T00:01:00")
    assert await world.engine.reconcile(key) == 60.0
    assert parse_time("2026-01-01T00:01:00") == parse_time("2026-01-01T00:01:00Z")


async def test_weights_that_leave_nobody_are_said(world: World) -> None:
    """It must not say `Admitted` of what runs nowhere."""
    world.policy(divided={"strategy": "StaticWeight", "weights": [{"clusterNames": ["esat"], "weight": 1}]})
    world.member("east")
    key = world.workload("web", kind="Deployment", count=3, cpu="100m", mode="Any")
    await world.settle(key)
    assert world.clusters(key) is None
    assert "east: Weight: policy demo gives it no weight" in world.condition(key, "Scheduled")["message"]
    workload = world.store.get(key)
    assert workload is not None
    assert [v.filter for v in await explain.verdicts(world.engine, workload)] == ["Weight"]
    world.policy(divided={"strategy": "StaticWeight", "weights": [{"clusterNames": ["east"], "weight": 1}]})
    await world.settle(key)
    assert world.clusters(key) == {"east": 3}
    world.policy(divided={"strategy": "StaticWeight", "weights": [{"clusterNames": ["esat"], "weight": 1}]})
    world.edit(key, count=5)
    await world.settle(key)
    assert world.clusters(key) == {"east": 3}, "what runs, runs on"
    assert world.condition(key, "Scheduled")["status"] == "False"


async def test_a_member_that_leaves_while_it_is_asked_is_not_picked(world: World) -> None:
    world.member("east", node("east-n0", cpu="64"), remote=True)
    world.member("west")
    east = world.fleet.admissions["east"]
    ask = east.evaluate

    async def leaves(*args: Any) -> Any:
        answer = await ask(*args)
        for known in (world.fleet.members, world.fleet.admissions):
            known.pop("east")
        world.fleet.touch()
        return answer

    east.evaluate = leaves  # type: ignore[method-assign]
    placer = ObjectPlacer(world.fleet)
    manifest = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    pick = await placer.place(manifest, Target("v1", "Pod", "default", "p"), [])
    assert pick.cluster == "west"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, 1e12])
@pytest.mark.parametrize("name", ["worker_lost_timeout", "pods_ready_timeout", "admit_timeout", "reservation_ttl", "lease_seconds"])
def test_times_that_are_none_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        SchedulerConfig(**{name: value})


def test_a_policy_without_a_spec_is_the_default_one() -> None:
    assert policies.parse({"metadata": {"name": "empty"}, "spec": {}}).type == policies.DEFAULT.type
