"""A cluster is left by surging: the split, what the Workload and the host's status say, and its end after ten minutes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from services.common.errors import StatusError
from services.reconciler import status_sums
from services.reconciler.controllers import divisions, statuses
from services.reconciler.controllers.context import Again, Context
from services.reconciler.controllers.workloads import copies_of
from services.reconciler.decide import decide
from services.reconciler.names import Obj
from services.reconciler.objects import workload_name
from services.reconciler.status_sums import Copy
from tests.unit.reconciler_world import Made


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Events:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def say(self, obj: Mapping[str, Any], reason: str, message: str, *, warning: bool = False) -> None:
        self.said.append((reason, message))


class Queue:
    def add(self, cluster: str, key: str, priority: int = 0) -> None: ...

    def add_after(self, cluster: str, key: str, delay: float, priority: int = 0) -> None: ...


class Case:
    """A ReplicaSet `r` of 4, made directly, that leaves east for west."""

    def __init__(self, granted: Mapping[str, int], since: str = "", **spec: Any) -> None:
        self.made = Made("east", "west")
        self.events = Events()
        self.context = Context(self.made.world, Queue(), None, self.events)  # type: ignore[arg-type]
        self.obj = self.made.host("replicaset", "r", spec={"replicas": 4, **spec})
        moving = [{"cluster": "east", "replicas": 4, "since": since or ago(5), "reason": "Drained"}]
        self.placed({"west": 4}, divisions={"r": dict(granted)}, moving=moving)
        self.patches: list[Obj] = []
        client: Any = self.made.client

        async def patch(resource: Any, namespace: str, name: str, body: Any, **_: Any) -> Obj:
            self.patches.append(body)
            return {}

        client.patch = patch

    def placed(self, placement: Mapping[str, int], **status: Any) -> None:
        self.made.placed("replicaset", self.obj, placement, **status)

    def runs(self, cluster: str, number: int, available: int) -> None:
        status = {
            "replicas": number, "fullyLabeledReplicas": number, "readyReplicas": available,
            "availableReplicas": available, "observedGeneration": 1,
        }  # fmt: skip
        self.made.copy("replicaset", self.obj, cluster, status=status, replicas=number)

    async def divide(self) -> Obj:
        """What is patched into the Workload's status; {} for nothing."""
        self.patches.clear()
        try:
            await divisions.reconcile(self.context, "replicaset", self.obj)
        except Again:
            pass
        return self.patches[0]["status"] if self.patches else {}

    def workload(self) -> Obj:
        found = self.made.world.host.get("workload", "ns", workload_name("replicaset", "r"))
        assert found is not None
        return found


def moving(status: Obj) -> Obj:
    return next((c for c in status.get("conditions", []) if c["type"] == "Moving"), {})


async def test_the_new_replicas_come_beside_the_old_ones() -> None:
    case = Case({"east": 4})
    case.runs("east", 4, 4)
    status = await case.divide()
    assert status["divisions"] == {"r": {"west": 4}}
    assert (moving(status)["status"], moving(status)["reason"]) == ("True", "Surging")
    assert "stays on east" in moving(status)["message"]


async def test_the_old_ones_go_as_the_new_ones_become_available() -> None:
    case = Case({"east": 4, "west": 4})
    case.runs("east", 4, 4)
    case.runs("west", 4, 3)
    assert (await case.divide())["divisions"] == {"r": {"east": 1}}
    case.runs("west", 4, 4)
    case.placed({"west": 4}, divisions={"r": {"east": 1, "west": 4}}, conditions=[
        {"type": "Moving", "status": "True", "reason": "Surging", "message": ""}])  # fmt: skip
    status = await case.divide()
    assert status["divisions"] == {"r": {"east": None}}
    assert (moving(status)["status"], moving(status)["reason"]) == ("False", "Moved")
    assert not case.events.said


async def test_after_ten_minutes_the_rest_goes_and_it_is_said() -> None:
    case = Case({"east": 4, "west": 4}, since=ago(601))
    case.runs("east", 4, 4)
    case.runs("west", 4, 1)
    status = await case.divide()
    assert status["divisions"] == {"r": {"east": None}}
    assert (moving(status)["status"], moving(status)["reason"]) == ("False", "SurgeTimedOut")
    assert case.events.said == [("SurgeTimedOut", moving(status)["message"])]
    assert "3 replicas did not become available" in moving(status)["message"]


async def test_the_split_is_stored_over_what_it_was_made_from_only() -> None:
    case = Case({"east": 4})
    case.runs("east", 4, 4)
    await case.divide()
    meta = case.patches[0]["metadata"]
    assert meta["resourceVersion"] == case.workload()["metadata"]["resourceVersion"]
    client: Any = case.made.client

    async def refuse(*_: Any, **__: Any) -> Obj:
        raise StatusError(409, "Conflict", "modified")

    client.patch = refuse
    with pytest.raises(Again):
        await divisions.reconcile(case.context, "replicaset", case.obj)
    assert not case.events.said


async def test_a_short_absence_of_the_drained_cluster_ends_nothing() -> None:
    case = Case({"east": 4, "west": 4})
    case.runs("east", 4, 4)
    case.runs("west", 4, 2)
    case.made.member("east").member.reachable = False
    assert (await case.divide())["divisions"] == {"r": {"east": 2}}
    wanted = statuses._sums(case.context, "replicaset", case.obj)
    assert wanted is not None
    assert wanted["availableReplicas"] == 4


def test_the_surplus_of_a_surge_is_not_shown() -> None:
    host = {"metadata": {"generation": 3}, "spec": {"replicas": 4}, "status": {"observedGeneration": 2}}

    def counts(n: int, available: int) -> dict[str, int]:
        return {"replicas": n, "fullyLabeledReplicas": n, "readyReplicas": available, "availableReplicas": available}

    for ready in range(5):
        copies = [Copy("east", counts(4, 4), 4 - ready, leaving=True, current=True), Copy("west", counts(4, ready), 4, current=True)]
        status = status_sums.replicaset(host, copies)
        assert status["availableReplicas"] == 4, "the deployment controller refuses more than spec.replicas"
        assert status["replicas"] >= 4 and status["readyReplicas"] >= status["availableReplicas"]
        assert status["observedGeneration"] == 3
    early = [Copy("east", counts(4, 4), 4, leaving=True, current=True), Copy("west", counts(0, 0), 4, current=True)]
    assert status_sums.replicaset(host, early)["replicas"] == 4
    going = [Copy("east", counts(4, 4), 1, leaving=True), Copy("west", counts(4, 4), 4, current=True)]
    assert status_sums.replicaset(host, going)["replicas"] == 4, "three more on east are about to go"
    late = [Copy("east", counts(4, 4), 4, leaving=True, current=True), Copy("west", counts(4, 4), 4, current=True)]
    scaled = [Copy("east", counts(3, 3), 3, current=True), Copy("west", counts(3, 3), 3, current=True)]
    assert status_sums.replicaset(host, scaled)["replicas"] == 6, "no surge: they are there until they are seen to go"
    assert status_sums.replicaset(host, late) == {**counts(4, 4), "observedGeneration": 3}


def test_a_drained_job_is_suspended_until_it_is_placed_elsewhere() -> None:
    made = Made("east", "west")
    job = made.host("job", "j", spec={"parallelism": 1}, status={"active": 1})
    evicted = [{"type": "Evicted", "status": "True", "reason": "Drained"}]
    made.copy("job", job, "east", status={"active": 1}, suspend=False)
    workload = made.placed("job", job, None, conditions=evicted, attempts=1)
    found = decide(made.world, "job", job, made.member("east"))
    assert found.manifest is not None
    assert found.manifest["spec"]["suspend"] is True
    assert copies_of(made.world, workload)[0]["state"] == "Removing", "its pod still runs"
    rests = {"conditions": [{"type": "Suspended", "status": "True"}]}
    made.copy("job", job, "east", status={**rests, "terminating": 1}, suspend=True)
    assert copies_of(made.world, workload)[0]["state"] == "Removing", "its pod is still stopping"
    made.copy("job", job, "east", status=rests, suspend=True)
    assert copies_of(made.world, workload)[0]["state"] == "Suspended"
    made.placed("job", job, {"west": 1}, attempts=1)
    job["status"] = {}
    assert decide(made.world, "job", job, made.member("east")).action == "remove"
    assert decide(made.world, "job", job, made.member("west")).action == "keep", "the old one goes first"


async def test_a_deployment_that_recreates_its_pods_does_not_surge() -> None:
    case = Case({"east": 4}, strategy={"type": "Recreate"})
    case.runs("east", 4, 4)
    status = await case.divide()
    assert status["divisions"] == {"r": {"east": None}}
    case.placed({"west": 4}, divisions={"r": {}})
    assert "divisions" not in await case.divide(), "they are still seen"
