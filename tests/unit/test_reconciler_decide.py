"""What becomes of a copy, and how it is written: decisions and the applier, without servers."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from services.common.errors import MemberUnreachable, StatusError
from services.reconciler.applier import Applier
from services.reconciler.controllers.workloads import _is_adopted, _tell_of_away, copies_of
from services.reconciler.decide import decide
from services.reconciler.keys import Key
from services.reconciler.manifests import manifest
from services.reconciler.names import FAILED_BASE, ORIGIN, Obj
from services.reconciler.world import CONFLICT, Report
from tests.unit.reconciler_world import FLEET, Made

ADMITTED = {"type": "Admitted", "status": "True"}
RUNNING = {"template": {"spec": {"containers": []}}}


@pytest.fixture
def made() -> Made:
    return Made("east", "west")


def action(made: Made, kind: str, obj: Obj, cluster: str) -> str:
    return decide(made.world, kind, obj, made.member(cluster)).action


def test_a_job_goes_where_it_is_placed_only(made: Made) -> None:
    job = made.host("job", "j", spec=RUNNING)
    assert action(made, "job", job, "east") == "keep"
    made.placed("job", job, {"east": 1})
    assert (action(made, "job", job, "east"), action(made, "job", job, "west")) == ("apply", "keep")


def test_no_copy_before_the_finalizer(made: Made) -> None:
    job = made.host("job", "j", held=False, spec=RUNNING)
    made.placed("job", job, {"east": 1})
    decision = decide(made.world, "job", job, made.member("east"))
    assert decision.action == "keep" and "finalizer" in decision.message


def test_a_job_managed_by_others_is_left_alone(made: Made) -> None:
    job = made.host("job", "j", spec={**RUNNING, "managedBy": "example.com/other"})
    made.placed("job", job, {"east": 1})
    assert action(made, "job", job, "east") == "keep"


def test_a_moved_job_waits_for_its_old_copy_unless_that_member_is_lost(made: Made) -> None:
    job = made.host("job", "j", spec=RUNNING)
    made.placed("job", job, {"west": 1})
    made.copy("job", job, "east")
    old = decide(made.world, "job", job, made.member("east"))
    assert (old.action, old.propagation) == ("remove", "Foreground")
    assert "east" in decide(made.world, "job", job, made.member("west")).message
    made.member("east").member.reachable = False
    assert action(made, "job", job, "west") == "apply"


def test_a_moved_job_waits_for_a_member_that_had_it_and_is_not_read_yet(made: Made) -> None:
    job = made.host("job", "j", spec=RUNNING)
    made.member("east").informers["job"].synced.clear()
    made.placed("job", job, {"west": 1})
    assert action(made, "job", job, "west") == "apply"
    made.placed("job", job, {"west": 1}, copies=[{"cluster": "east", "state": "Removing", "message": ""}])
    assert "east" in decide(made.world, "job", job, made.member("west")).message
    made.member("east").informers["job"].synced.set()
    assert action(made, "job", job, "west") == "apply"


def test_a_jobs_last_state_goes_up_before_its_copy_is_removed(made: Made) -> None:
    job = made.host("job", "j", spec=RUNNING, status={"failed": 0})
    made.placed("job", job, {"west": 1})
    made.copy("job", job, "east", status={"failed": 2})
    assert action(made, "job", job, "east") == "keep"
    job["status"]["failed"] = 2
    assert action(made, "job", job, "east") == "remove"


def test_a_finished_job_stays_whatever_its_placement(made: Made) -> None:
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    job = made.host("job", "j", spec=RUNNING, status=done)
    made.placed("job", job, None)
    made.copy("job", job, "east", status=done)
    assert action(made, "job", job, "east") == "keep"


def test_a_suspended_job_without_placement_keeps_a_suspended_copy(made: Made) -> None:
    job = made.host("job", "j", spec={**RUNNING, "suspend": True})
    made.placed("job", job, None, lastPlacement={"clusters": [{"name": "east"}]})
    made.copy("job", job, "east", suspend=False)
    decision = decide(made.world, "job", job, made.member("east"))
    assert decision.manifest is not None and decision.manifest["spec"]["suspend"] is True


def test_a_resumed_job_stays_suspended_until_it_is_admitted(made: Made) -> None:
    job = made.host("job", "j", spec={**RUNNING, "suspend": False})
    made.copy("job", job, "east", suspend=True)
    for status, suspended in (("False", True), ("True", False)):
        made.placed("job", job, {"east": 1}, conditions=[{"type": "Admitted", "status": status}])
        decision = decide(made.world, "job", job, made.member("east"))
        assert decision.manifest is not None and decision.manifest["spec"]["suspend"] is suspended


def test_failures_of_earlier_attempts_are_fixed_when_the_copy_is_made(made: Made) -> None:
    job = made.host("job", "j", spec=RUNNING, status={"failed": 2})
    made.placed("job", job, {"east": 1})

    def base() -> Any:
        decision = decide(made.world, "job", job, made.member("east"))
        assert decision.manifest is not None
        return decision.manifest["metadata"]["annotations"][FAILED_BASE]

    assert base() == "2"
    made.copy("job", job, "east", failed_base=2)
    job["status"]["failed"] = 5
    assert base() == "2"


def test_a_replicaset_follows_its_stored_split(made: Made) -> None:
    deployment = made.host("deployment", "d", spec={"replicas": 3, **RUNNING})
    reference = {"kind": "Deployment", "name": "d", "uid": "host-d", "controller": True}
    rs = made.host("replicaset", "d-1", spec={"replicas": 3, **RUNNING}, metadata={"ownerReferences": [reference]})
    made.placed("deployment", deployment, {"east": 3})
    assert action(made, "replicaset", rs, "east") == "keep"
    made.placed("deployment", deployment, {"east": 3}, divisions={"d-1": {"east": 2}})
    decision = decide(made.world, "replicaset", rs, made.member("east"))
    assert decision.manifest is not None and decision.manifest["spec"]["replicas"] == 2

    made.copy("replicaset", rs, "west", replicas=1, status={"replicas": 1})
    emptied = decide(made.world, "replicaset", rs, made.member("west"))
    assert emptied.manifest is not None and emptied.manifest["spec"]["replicas"] == 0
    made.copy("replicaset", rs, "west", replicas=0, status={"replicas": 1})
    assert action(made, "replicaset", rs, "west") == "keep"
    made.copy("replicaset", rs, "west", replicas=0)
    assert action(made, "replicaset", rs, "west") == "remove"


def test_orphaned_copies_run_on_until_their_split_is_stored(made: Made) -> None:
    rs = made.host("replicaset", "r", spec={"replicas": 1, **RUNNING})
    made.copy("replicaset", rs, "east", replicas=1, status={"replicas": 1})
    assert action(made, "replicaset", rs, "east") == "keep"
    made.placed("replicaset", rs, None)
    assert action(made, "replicaset", rs, "east") == "keep"
    made.placed("replicaset", rs, {"east": 1}, conditions=[ADMITTED])
    assert action(made, "replicaset", rs, "east") == "keep"
    made.placed("replicaset", rs, {"west": 1}, divisions={"r": {"west": 1}})
    assert action(made, "replicaset", rs, "east") == "apply"


@pytest.mark.parametrize(("finalizers", "want"), [
    ([], "Background"), (["foregroundDeletion"], "Foreground"), (["orphan"], "Orphan"),
])  # fmt: skip
def test_deletion_is_passed_on_even_when_its_finalizer_has_gone(made: Made, finalizers: list[str], want: str) -> None:
    job = made.host("job", "j", spec=RUNNING)
    made.placed("job", job, {"east": 1})
    made.copy("job", job, "east")
    going = {**job, "metadata": {**job["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    made.seen("job", {**going, "metadata": {**going["metadata"], "finalizers": finalizers}}, "MODIFIED")
    made.seen("job", going, "MODIFIED")
    decision = decide(made.world, "job", going, made.member("east"))
    assert (decision.action, decision.propagation) == ("remove", want)


def test_an_orphaning_that_nobody_saw_is_told_by_the_workload(made: Made) -> None:
    job = made.host("job", "j", spec=RUNNING, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    workload = made.placed("job", job, {"east": 1})
    made.copy("job", job, "east")
    assert decide(made.world, "job", job, made.member("east")).propagation == "Background"
    made.seen("workload", {**workload, "metadata": {**workload["metadata"], "ownerReferences": []}}, "MODIFIED")
    assert decide(made.world, "job", job, made.member("east")).propagation == "Orphan"


def test_copies_of_a_workload_are_reported_by_cluster(made: Made) -> None:
    job = made.host("job", "j", spec=RUNNING)
    workload = made.placed("job", job, {"west": 1})
    made.copy("job", job, "east")
    made.world.report(Key("job", "ns", "j"), "west", Report(CONFLICT, "taken"))
    assert copies_of(made.world, workload) == [
        {"cluster": "east", "state": "Removing", "message": ""},
        {"cluster": "west", "state": "Conflict", "message": "taken"},
    ]
    made.member("east").member.reachable = False
    assert copies_of(made.world, workload)[0]["state"] == "LeftBehind"


async def test_what_is_as_written_is_not_written_again(made: Made) -> None:
    east, applier = made.member("east"), Applier()
    config = made.host("configmap", "c", data={"a": "1"})
    desired = manifest("configmap", config, FLEET)
    assert await applier.sync(east, "configmap", desired) == "written"
    client: Any = east.client
    stored = client.objects["configmaps", "ns", "c"]
    made.cached("configmap", stored, "east")
    client.calls.clear()
    assert await applier.sync(east, "configmap", desired) == "same"
    assert client.calls == []

    made.cached("configmap", {**stored, "data": {"a": "tampered"}}, "east")
    assert await applier.sync(east, "configmap", desired) == "written"
    assert client.calls[-1][0] == "apply"


async def test_a_webhooks_change_is_no_endless_difference(made: Made) -> None:
    east, applier = made.member("east"), Applier()
    config = made.host("configmap", "c", data={"a": "1"})
    desired = manifest("configmap", config, FLEET)
    client: Any = east.client
    mutated = client.hold(east.informers["configmap"].resource, {**desired, "data": {"a": "by the webhook"}})
    made.cached("configmap", mutated, "east")
    real = client.apply

    async def hooked(*args: Any, **query: Any) -> Obj:
        answer: Obj = await real(*args, **query)
        answer["data"] = {"a": "by the webhook"}
        return answer

    client.apply = hooked
    assert await applier.sync(east, "configmap", desired) == "written"
    made.cached("configmap", client.objects["configmaps", "ns", "c"], "east")
    assert await applier.sync(east, "configmap", desired) == "same"


async def test_a_foreign_object_is_never_written(made: Made) -> None:
    east, applier = made.member("east"), Applier()
    job = made.host("job", "j", spec=RUNNING)
    client: Any = east.client
    foreign = client.hold(east.informers["job"].resource, {"metadata": {"name": "j", "namespace": "ns"}})
    for _ in range(2):
        assert await applier.sync(east, "job", manifest("job", job, FLEET)) == "foreign"
    assert {call[0] for call in client.calls} == {"create", "get"} and len(client.calls) == 2
    assert client.objects["jobs.batch", "ns", "j"] == foreign


async def test_our_copy_that_the_cache_does_not_show_yet_is_taken_over(made: Made) -> None:
    east, applier = made.member("east"), Applier()
    job = made.host("job", "j", spec=RUNNING)
    client: Any = east.client
    client.hold(east.informers["job"].resource, manifest("job", job, FLEET))
    assert await applier.sync(east, "job", manifest("job", job, FLEET)) == "same"
    assert client.objects["jobs.batch", "ns", "j"]["metadata"]["labels"][ORIGIN] == FLEET


async def test_a_dependency_of_an_earlier_host_object_goes_first(made: Made) -> None:
    east, applier = made.member("east"), Applier()
    config = made.host("configmap", "c", data={"a": "1"})
    made.copy("configmap", config, "east")
    again = {**config, "metadata": {**config["metadata"], "uid": "another"}}
    assert await applier.sync(east, "configmap", manifest("configmap", again, FLEET)) == "waiting"
    client: Any = east.client
    assert client.objects == {}


async def test_dependencies_that_cannot_change_are_made_anew_but_workloads_are_not(made: Made) -> None:
    east, applier = made.member("east"), Applier()
    invalid = StatusError(422, "Invalid", "field is immutable")
    client: Any = east.client
    for kind, obj in (
        ("secret", made.host("secret", "s", type="b")), ("job", made.host("job", "j", spec=RUNNING)),
    ):  # fmt: skip
        made.copy(kind, {**obj, "type": "a", "spec": {"parallelism": 2}}, "east")
        client.refuse = invalid
        if kind == "job":
            with pytest.raises(StatusError, match="immutable"):
                await applier.sync(east, kind, manifest(kind, obj, FLEET))
        else:
            await applier.sync(east, kind, manifest(kind, obj, FLEET))
    assert ("jobs.batch", "ns", "j") in client.objects and ("secrets", "ns", "s") not in client.objects


async def test_a_hung_member_costs_its_deadline_only(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from services.reconciler import applier as module

    monkeypatch.setattr(module, "DEADLINE", 0.05)
    east = made.member("east")

    async def hang(*_: Any, **__: Any) -> Obj:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    east.client.create = hang  # type: ignore[method-assign]
    job = made.host("job", "j", spec=RUNNING)
    with pytest.raises(MemberUnreachable, match="no answer"):
        await Applier().sync(east, "job", manifest("job", job, FLEET))


def test_an_adopted_replicasets_own_workload_is_surplus(made: Made) -> None:
    reference = {"kind": "Deployment", "name": "d", "uid": "host-d", "controller": True}
    deployment = made.host("deployment", "d", spec={"replicas": 1, **RUNNING})
    rs = made.host("replicaset", "r", spec={"replicas": 1, **RUNNING})
    own = made.placed("replicaset", rs, {"east": 1})
    assert not _is_adopted(made.world, "replicaset", rs) and made.world.workload_of("replicaset", rs) == own
    rs = made.host("replicaset", "r", spec={"replicas": 1, **RUNNING}, metadata={"ownerReferences": [reference]})
    theirs = made.placed("deployment", deployment, {"east": 1})
    assert _is_adopted(made.world, "replicaset", rs) and made.world.workload_of("replicaset", rs) == theirs


def test_what_waits_for_a_cluster_that_is_away_says_so_once_an_outage(made: Made) -> None:
    job = made.host("job", "j", spec=RUNNING)
    workload = made.placed("job", job, {"east": 1})
    said: list[tuple[str, str, bool]] = []
    events = SimpleNamespace(say=lambda obj, reason, message, *, warning=False: said.append((reason, message, warning)))
    context: Any = SimpleNamespace(world=made.world, events=events)
    _tell_of_away(context, job, copies_of(made.world, workload))
    assert not said, "it is on its way"
    away = made.member("east").member
    away.reachable, away.unreachable_since = False, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    _tell_of_away(context, job, copies_of(made.world, workload))
    [(reason, message, warning)] = said
    assert (reason, warning) == ("ClusterUnreachable", True)
    assert message.startswith("east cannot be reached since 2026-01-02T03:04:05Z: its part waits") and "reclock forget east" in message
    made.copy("job", job, "east")
    _tell_of_away(context, job, copies_of(made.world, workload))
    assert len(said) == 1, "what runs there already waits for nothing"
