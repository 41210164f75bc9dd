"""The registry's rules, the hub's versions, the state file."""

from __future__ import annotations

import asyncio
import gc
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kube_fake import kubeconfig

from services.discovery.hub import Hub
from services.discovery.probe import ProbeResult
from services.discovery.providers.base import Found, Problem, Reading, found
from services.discovery.record import (
    CONFIGURED,
    REACHABLE,
    READY,
    Operator,
    Record,
    from_object,
    operator_part,
    to_object,
    to_proto,
)  # fmt: skip
from services.discovery.registry import Registry
from services.discovery.state import State, StateFile, access, load, write

GOOD = ProbeResult(True, True, "ReadyzOk", "", "v1.34.4", "uid-1", 1500)
AWAY = ProbeResult(False, False, "CannotConnect", "refused")


def cluster(name: str, token: str = "t", source: str = "", **labels: str) -> Found:
    config = kubeconfig(name, {"server": f"https://{name}:1"}, {"token": token})
    return found(name, config, source or f"/k/{name}#{name}", labels)


class Spy:
    """A keeper that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def engaged(self, record: Record) -> None:
        self.told.append(("engaged", record.name))

    def changed(self, record: Record) -> None:
        pass

    def waits(self, record: Record) -> None:
        pass

    def disengaged(self, record: Record) -> None:
        self.told.append(("disengaged", record.name))

    def take(self) -> list[tuple[str, str]]:
        told, self.told = self.told, []
        return told


def make(*providers: str) -> tuple[Registry, Spy]:
    registry, spy = Registry(Hub(), providers or ["files"]), Spy()
    registry.add_keeper(spy)
    return registry, spy


def test_engaging_is_idempotent_and_changed_access_engages_in_place() -> None:
    registry, spy = make()
    registry.reading("files", Reading((cluster("east"), cluster("west"))))
    assert spy.take() == [("engaged", "east"), ("engaged", "west")]
    version = registry.hub.version
    registry.reading("files", Reading((cluster("east"), cluster("west"))))
    assert spy.take() == []
    assert registry.hub.version == version
    record = registry.records["east"]
    registry.reading("files", Reading((cluster("east", token="new"), cluster("west"))))
    assert spy.take() == [("engaged", "east")]
    assert registry.records["east"] is record
    assert [name for _, name, _ in registry.hub.since(version, with_access=True)] == ["east"]
    registry.reading("files", Reading((cluster("west"),)))
    assert spy.take() == [("disengaged", "east")]
    assert [(name, c) for _, name, c in registry.hub.since(registry.hub.version - 1, with_access=True)] == [
        ("east", None)
    ]


def test_unreadable_sources_keep_their_last_clusters() -> None:
    registry, spy = make()
    registry.restore(Record("east", "files", "/k/east#east"))
    registry.restore(Record("gone", "files", "/k/gone#gone"))
    problem = Problem("/k/east", "is no YAML")
    registry.reading("files", Reading((), (problem,), ("/k/east#",)))
    assert set(registry.records) == {"east"}
    assert spy.take() == [("disengaged", "gone")]
    assert registry.records["east"].conditions[CONFIGURED].status == "False"
    assert [(p, s, m) for p, s, m, _ in registry.sources.problems()] == [("files", "/k/east", "is no YAML")]
    since = next(registry.sources.problems())[3]
    registry.reading("files", Reading((), (problem,), ("/k/east#",)))
    assert next(registry.sources.problems())[3] == since
    registry.reading("files", Reading((cluster("east"),)))
    assert registry.records["east"].is_true(CONFIGURED)
    assert not list(registry.sources.problems())


def test_nothing_leaves_before_the_first_complete_reading() -> None:
    registry, _ = make("files", "static")
    registry.restore(Record("east", "files", "/k/east#east"))
    registry.restore(Record("other", "removed-provider", "x"))
    registry.reading("static", Reading(()))
    assert set(registry.records) == {"east", "other"}
    assert not registry.hub.complete.is_set()
    registry.reading("files", Reading((cluster("east"),)))
    assert registry.hub.complete.is_set()
    assert set(registry.records) == {"east"}


def test_a_name_belongs_to_the_provider_that_had_it_first() -> None:
    registry, _ = make("files", "static")
    registry.reading("files", Reading((cluster("east"),)))
    registry.reading("static", Reading((cluster("east", source="elsewhere"), cluster("west"))))
    assert registry.records["east"].provider == "files"
    assert [(p, s) for p, s, m, _ in registry.sources.problems()] == [("static", "elsewhere")]
    registry.reading("files", Reading(()))
    registry.reading("static", Reading((cluster("east", source="elsewhere"), cluster("west"))))
    assert registry.records["east"].provider == "static"


def test_one_cluster_under_two_names_is_streamed_once() -> None:
    registry, _ = make()
    registry.reading("files", Reading((cluster("east"), cluster("again"))))
    registry.probed("east", GOOD)
    registry.probed("again", GOOD)
    assert registry.records["again"].same_as == "east"
    assert registry.records["again"].conditions[CONFIGURED].reason == "SameCluster"
    assert registry.hub.get("again") is None
    registry.reading("files", Reading((cluster("again"),)))
    assert registry.records["again"].same_as == ""
    assert registry.hub.get("again") is not None
    assert registry.records["again"].is_true(CONFIGURED)


def test_conditions_and_the_time_of_loss() -> None:
    registry, _ = make()
    registry.reading("files", Reading((cluster("east"),)))
    record = registry.records["east"]
    assert record.conditions[REACHABLE].status == "Unknown"
    registry.probed("east", AWAY)
    lost = record.unreachable_since
    assert lost is not None
    assert record.conditions[REACHABLE].reason == "CannotConnect"
    registry.forget(record)
    registry.probed("east", AWAY)
    assert record.unreachable_since == lost
    assert registry.hub.get("east").forgotten  # type: ignore[union-attr]
    registry.probed("east", GOOD)
    assert (record.unreachable_since, record.forgotten) == (None, False)
    assert (record.is_true(READY), record.uid, record.kube_version) == (True, "uid-1", "v1.34.4")
    registry.probed("east", ProbeResult(True, False, "NotReady", "etcd"))
    assert not record.is_true(READY)
    assert record.uid == "uid-1"


def test_small_changes_of_latency_are_not_told() -> None:
    registry, _ = make()
    registry.reading("files", Reading((cluster("east"),)))
    registry.probed("east", GOOD)
    version = registry.hub.version
    registry.probed("east", ProbeResult(True, True, "ReadyzOk", "", "v1.34.4", "uid-1", 1800))
    assert registry.hub.version == version
    registry.probed("east", ProbeResult(True, True, "ReadyzOk", "", "v1.34.4", "uid-1", 9000))
    assert registry.hub.version > version


def test_another_uid_is_another_incarnation() -> None:
    registry, _ = make()
    registry.reading("files", Reading((cluster("east"),)))
    registry.probed("east", GOOD)
    registry.probed("east", ProbeResult(True, True, "ReadyzOk", "", "v1.34.4", "uid-2", 1500))
    assert registry.hub.get("east").uid == "uid-2"  # type: ignore[union-attr]


def test_operators_labels_win_over_the_providers() -> None:
    registry, _ = make()
    registry.reading("files", Reading((cluster("east", region="eu", tier="one"),)))
    registry.operated("east", Operator({"region": "us"}, {"note": "x"}, ({"key": "k", "effect": "NoSchedule"},)))
    shown = registry.hub.get("east")
    assert shown is not None
    assert dict(shown.labels) == {"region": "us", "tier": "one"}
    assert [taint.effect for taint in shown.taints] == ["NoSchedule"]
    obj = {"metadata": {"labels": {"region": "us", "tier": "one"}}}
    assert operator_part(obj, {"region": "eu", "tier": "one"}).labels == {"region": "us"}


def test_what_was_kept_comes_back() -> None:
    registry, _ = make()
    registry.reading("files", Reading((cluster("east"),)))
    registry.probed("east", GOOD)
    registry.probed("east", AWAY)
    registry.operated("east", Operator({"region": "us"}, {}, ({"key": "k", "effect": "NoExecute"},)))
    kept = from_object(to_object(registry.records["east"]))
    assert kept is not None
    kept.latency_us = 1500
    assert to_proto(kept) == to_proto(registry.records["east"])
    fresh, _ = make()
    fresh.reading("files", Reading((cluster("east"),)))
    fresh.probed("east", AWAY)
    fresh.restore(kept)
    assert fresh.records["east"].unreachable_since == kept.unreachable_since
    assert fresh.records["east"].uid == "uid-1"


def test_access_is_given_only_when_asked() -> None:
    registry, _ = make()
    registry.reading("files", Reading((cluster("east"),)))
    (_, _, without), = registry.hub.since(0, with_access=False)
    (_, _, given), = registry.hub.since(0, with_access=True)
    assert not without.HasField("access")
    assert b"token" in given.access.kubeconfig
    assert given.access.digest == registry.records["east"].found.digest  # type: ignore[union-attr]


async def test_the_hub_wakes_and_resumes() -> None:
    hub = Hub()
    before = hub.version
    wait = asyncio.create_task(hub.changed(before))
    await asyncio.sleep(0)
    assert not wait.done()
    registry = Registry(hub, ["files"])
    registry.reading("files", Reading((cluster("east"), cluster("west"))))
    await asyncio.wait_for(wait, 1)
    assert hub.resumable(before)
    assert not hub.resumable(1)
    assert not hub.resumable(hub.version + 1)
    middle = hub.version
    registry.reading("files", Reading((cluster("west"), cluster("north"))))
    changes = [(name, c is not None) for _, name, c in hub.since(middle, with_access=False)]
    assert changes == [("east", False), ("north", True)]


def test_old_graves_make_old_versions_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.discovery.hub.GRAVES", 2)
    registry, _ = make()
    start = registry.hub.version
    for name in ("a", "b", "c", "d"):
        registry.reading("files", Reading((cluster(name),)))
    assert not registry.hub.resumable(start)
    assert registry.hub.resumable(registry.hub.version)


def test_ten_thousand_cycles_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.discovery.hub.GRAVES", 10)
    registry, spy = make()
    here = cluster("east")

    def cycle() -> None:
        registry.reading("files", Reading((here,)))
        registry.probed("east", GOOD)
        registry.reading("files", Reading(()))
        spy.take()

    for _ in range(100):
        cycle()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(10_000):
        cycle()
    gc.collect()
    assert len(gc.get_objects()) - before < 1000
    assert not registry.records
    assert len(registry.hub) == 0


async def test_the_state_file_is_whole_private_and_survives_damage(tmp_path: Path) -> None:
    path = tmp_path / "sub/state.json"
    contents = State(clusters=[{"a": 1}], registrations={"x": {"kubeconfig": {}, "labels": {}}}, unsaved=True)
    file = StateFile(str(path), lambda: contents)
    file.mark()
    assert await file.flush()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert file.load() == contents
    path.write_bytes(path.read_bytes()[:20])
    assert load(path) == State()
    assert path.with_suffix(".json.broken").exists()
    write(path, State(format=99))
    assert load(path) == State()
    off: Any = StateFile("", lambda: contents)
    off.mark()
    assert await off.flush()


def restarted(registry: Registry, path: Path) -> tuple[Registry, Spy]:
    """A registry that was given what the state file of another one holds."""
    records = list(registry.records.values())
    kept = {r.name: access(r.found or r.kept) for r in records if r.held and (r.found or r.kept)}  # type: ignore[arg-type]
    write(path, State(clusters=[to_object(record) for record in records], access=kept))
    state = load(path)
    fresh, spy = make()
    for obj in state.clusters:
        record = from_object(obj)
        assert record is not None
        record.kept = state.kept(record.name)
        fresh.restore(record)
    return fresh, spy


def follow(registry: Registry, name: str) -> None:
    """It was reached, and the reconciler may have copies there."""
    registry.records[name].uid = f"{name}-uid"
    registry.hold(name)


def test_a_cluster_that_was_never_reached_leaves_at_once() -> None:
    registry, _ = make()
    registry.reading("files", Reading((cluster("east"), cluster("west"))))
    registry.hold("east")
    registry.reading("files", Reading((cluster("west"),)))
    assert set(registry.records) == {"west"}


def test_a_followed_cluster_is_kept_until_it_is_released(tmp_path: Path) -> None:
    registry, spy = make()
    registry.reading("files", Reading((cluster("east"), cluster("west"))))
    follow(registry, "east")
    spy.take()
    registry.reading("files", Reading((cluster("west"),)))
    east = registry.records["east"]
    assert east.leaving_since is not None
    assert east.conditions[CONFIGURED].reason == "Leaving"
    assert spy.take() == []
    streamed = {name: c for _, name, c in registry.hub.since(0, with_access=True, with_leaving=True)}
    assert streamed["east"].access.digest
    # Over kill -9 of discovery, whose source is gone: access and time come from the state file.
    again, told = restarted(registry, tmp_path / "state")
    again.reading("files", Reading((cluster("west"),)))
    kept = again.records["east"]
    assert kept.leaving_since == east.leaving_since
    assert ("engaged", "east") in told.take()
    streamed = {name: c for _, name, c in again.hub.since(0, with_access=True, with_leaving=True)}
    assert streamed["east"].access.digest == registry.records["east"].found.digest  # type: ignore[union-attr]
    again.release(kept, "claim ns/data")
    assert set(again.records) == {"west"}
    assert told.take() == [("disengaged", "east")]


def test_a_cluster_whose_source_goes_while_discovery_is_away_is_kept_too(tmp_path: Path) -> None:
    registry, _ = make()
    registry.reading("files", Reading((cluster("east"), cluster("west"))))
    follow(registry, "east")
    again, told = restarted(registry, tmp_path / "state")
    again.reading("files", Reading((cluster("west"),)))
    assert again.records["east"].leaving_since is not None
    assert again.records["east"].found is not None
    assert sorted(told.take()) == [("engaged", "east"), ("engaged", "west")]


def test_a_leaving_cluster_that_comes_back_is_engaged_in_place() -> None:
    registry, spy = make("files", "static")
    registry.reading("static", Reading(()))
    registry.reading("files", Reading((cluster("east"),)))
    follow(registry, "east")
    east = registry.records["east"]
    spy.take()
    registry.reading("files", Reading(()))
    registry.forget(east)
    registry.reading("files", Reading((cluster("east"),)))
    assert registry.records["east"] is east
    assert east.leaving_since is None
    assert not east.forgotten
    assert spy.take() == []
    # Another provider may take it over while it is leaving.
    registry.reading("files", Reading(()))
    registry.reading("static", Reading((cluster("east", source="elsewhere"),)))
    assert registry.records["east"] is east
    assert (east.provider, east.leaving_since) == ("static", None)
    assert not list(registry.sources.problems())


def test_engaging_and_leaving_ten_thousand_times_leaves_nothing() -> None:
    registry, _ = make()
    registry.reading("files", Reading(()))
    for number in range(10_000):
        name = f"c{number}"
        registry.reading("files", Reading((cluster(name),)))
        follow(registry, name)
        registry.reading("files", Reading(()))
        registry.release(registry.records[name])
    assert registry.records == {}
    assert len(registry.hub) == 0
    registry.reading("files", Reading((cluster("east"),)))
    follow(registry, "east")
    registry.reading("files", Reading(()))
    registry.release_overdue(3600)
    assert "east" in registry.records
    registry.release_overdue(-1)
    assert "east" in registry.records, "what must not run twice may run there"
    registry.forget(registry.records["east"])
    registry.release_overdue(-1)
    assert registry.records == {}


def test_changes_and_latencies_are_remembered_and_outlive_a_restart() -> None:
    registry = Registry(Hub(), ["files"])
    registry.reading("files", Reading((cluster("east"),)))
    good, lost = replace(GOOD, sample_us=1000), replace(GOOD, reachable=False, ready=False, reason="Timeout", message="x" * 500)
    for _ in range(99):
        registry.probed("east", good)
    registry.probed("east", replace(GOOD, sample_us=50_000))
    record = registry.records["east"]
    assert [(c.type, c.status) for c in record.health.changes] == [("Configured", "True"), ("Reachable", "True"), ("Ready", "True")]
    registry.probed("east", lost)
    registry.probed("east", replace(lost, message="another text is no change"))
    status = to_object(record)["status"]
    assert status["latencies"] == {"p50": "1.0ms", "p99": "50.0ms", "samples": 100}
    assert [(c["type"], c["status"], c["reason"]) for c in status["history"]][3:] == [("Reachable", "False", "Timeout")]
    assert len(status["history"][-1]["message"]) <= 201
    for number in range(50):
        registry.probed("east", replace(lost, reason=f"Reason{number}"))
    assert len(to_object(record)["status"]["history"]) == 20
    kept = from_object(to_object(record))
    assert kept is not None
    assert list(kept.health.changes)[-1].reason == "Reason49"
    assert kept.health.samples == 0


@pytest.mark.parametrize(("beginning", "kept"), [
    ("", True), ("/k", True), ("/k/", True), ("/k/a", False), ("/k/a.yaml", True), ("/k/a.yaml#", True), ("/k/a.yaml#prod", False),
    ("/k/a.yaml#prod-eu", True), ("/k/b.yaml", False),
])  # fmt: skip
def test_only_what_is_below_an_unreadable_source_is_kept(beginning: str, kept: bool) -> None:
    """A context `prod` that is bad must not keep `prod-eu`, which somebody has removed."""
    registry = Registry(Hub(), ["files"])
    gone = found("prod-eu", kubeconfig("prod-eu", {"server": "https://eu:1"}), "/k/a.yaml#prod-eu")
    registry.reading("files", Reading((gone,)))
    registry.reading("files", Reading((), (), (beginning,)))
    assert ("prod-eu" in registry.records) is kept


@pytest.mark.parametrize("added", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "never", "", 5])
def test_a_taint_may_say_any_time(added: Any) -> None:
    """The API server takes the first two. They ended the probes of the cluster, and discovery with its next reading."""
    registry = Registry(Hub(), ["files"])
    east = found("east", kubeconfig("east", {"server": "https://east:1"}), "/k/a.yaml#east")
    registry.reading("files", Reading((east,)))
    taint = {"key": "a", "effect": "NoExecute", "timeAdded": added}
    registry.operated("east", operator_part({"spec": {"taints": [taint]}}, {}))
    registry.probed("east", ProbeResult(True, True, "ReadyzOk", "", "v1.34.4", "uid", 1500))
    registry.reading("files", Reading((east,)))
    cluster = registry.hub.get("east")
    assert cluster is not None and cluster.taints[0].HasField("added_at"), "it counts from when it was seen"
