"""Another cluster under the name of one that may hold copies: it waits until that one has left."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from kube_fake import KubeFake, eventually
from test_discovery_registry import AWAY, GOOD, Spy, cluster, make, restarted

from services.common.kube.shape import Shape, shaped
from services.discovery import succession
from services.discovery.config import Probe
from services.discovery.hub import Hub
from services.discovery.probe import Prober, ProbeResult
from services.discovery.providers.base import Found, Reading, found
from services.discovery.record import (
    CONFIGURED,
    REACHABLE,
    READY,
    Operator,
    Record,
    from_object,
    to_object,
    to_proto,
)
from services.discovery.registry import Registry

OLD, NEW = cluster("east"), cluster("east", token="new")
ANOTHER = replace(GOOD, uid="uid-2")
FORBIDDEN = ProbeResult(True, False, "Forbidden", "allow its user to get kube-system")


def held() -> tuple[Registry, Spy, Record]:
    """A fleet of one cluster, reached, with a reconciler that follows it."""
    registry, spy = make()
    registry.reading("files", Reading((OLD,)))
    registry.probed("east", GOOD)
    registry.hold("east")
    spy.take()
    return registry, spy, registry.records["east"]


def streamed(registry: Registry) -> str:
    """Digest of the access that is handed out."""
    return {name: c for _, name, c in registry.hub.since(0, with_access=True, with_leaving=True)}["east"].access.digest  # type: ignore[no-any-return]


def judge(registry: Registry, access: Found, result: ProbeResult) -> None:
    succession.identified(registry, "east", access.digest, result)


def test_changed_access_is_used_once_it_leads_to_the_same_cluster() -> None:
    registry, spy, east = held()
    registry.reading("files", Reading((NEW,)))
    assert (streamed(registry), spy.take()) == (OLD.digest, [])
    assert east.conditions[CONFIGURED].reason == "AccessNotVerified"
    judge(registry, NEW, AWAY)
    assert "refused" in east.conditions[CONFIGURED].message
    assert east.is_true(REACHABLE), "what is known of the cluster itself still holds"
    judge(registry, NEW, FORBIDDEN)
    assert streamed(registry) == OLD.digest
    judge(registry, NEW, GOOD)
    assert (streamed(registry), spy.take()) == (NEW.digest, [("engaged", "east")])
    assert (registry.records["east"], east.is_true(CONFIGURED), east.waiting) == (east, True, None)


def test_another_cluster_under_the_name_waits_until_the_first_has_left() -> None:
    registry, spy, east = held()
    registry.reading("files", Reading((NEW,)))
    judge(registry, NEW, ANOTHER)
    assert east.leaving_since is not None
    condition = east.conditions[CONFIGURED]
    assert condition.reason == "AnotherCluster"
    assert "uid-2" in condition.message and "reclock forget east" in condition.message
    assert (streamed(registry), east.uid) == (OLD.digest, "uid-1")
    # Readings that say the same, and probes of the old one, change nothing.
    since = east.leaving_since
    registry.reading("files", Reading((NEW,)))
    registry.probed("east", AWAY)
    judge(registry, NEW, ANOTHER)
    assert (east.leaving_since, streamed(registry)) == (since, OLD.digest)
    # It has left: the other one is engaged, as another cluster, and says what was left behind.
    registry.release(east, "statefulset ns/db")
    heir = registry.records["east"]
    assert heir is not east
    assert (heir.uid, streamed(registry), heir.leaving_since, heir.held) == ("uid-2", NEW.digest, None, False)
    assert spy.take() == [("disengaged", "east"), ("engaged", "east")]
    assert any("statefulset ns/db" in change["message"] for change in to_object(heir)["status"]["history"])


def test_the_old_kubeconfig_put_back_ends_it() -> None:
    registry, spy, east = held()
    registry.reading("files", Reading((NEW,)))
    judge(registry, NEW, ANOTHER)
    registry.reading("files", Reading((OLD,)))
    assert (east.leaving_since, east.waiting, streamed(registry)) == (None, None, OLD.digest)
    assert spy.take() == []
    # Or the other one is withdrawn: nobody waits, and this one goes on leaving.
    registry.reading("files", Reading((NEW,)))
    judge(registry, NEW, ANOTHER)
    registry.reading("files", Reading(()))
    assert (east.waiting, east.conditions[CONFIGURED].reason) == (None, "Leaving")


def test_a_name_that_is_taken_while_its_cluster_leaves_waits() -> None:
    registry, _, east = held()
    registry.reading("files", Reading(()))
    registry.reading("files", Reading((NEW,)))
    assert east.leaving_since is not None, "it is not known yet whether it is back"
    judge(registry, NEW, ANOTHER)
    assert (streamed(registry), east.uid) == (OLD.digest, "uid-1")
    judge(registry, NEW, GOOD)
    assert (east.leaving_since, streamed(registry)) == (None, NEW.digest)


def test_the_name_belongs_to_the_first_of_those_that_wait() -> None:
    registry, _ = make("files", "static")
    registry.reading("static", Reading(()))
    registry.reading("files", Reading((OLD,)))
    registry.probed("east", GOOD)
    registry.hold("east")
    registry.reading("files", Reading(()))
    registry.reading("static", Reading((NEW,)))
    registry.reading("files", Reading((cluster("east", token="third"),)))
    waiting = registry.records["east"].waiting
    assert waiting is not None and waiting.provider == "static"
    assert [provider for provider, *_ in registry.sources.problems()] == ["files"]


def test_another_cluster_at_the_same_address_is_not_taken_for_it() -> None:
    registry, spy, east = held()
    registry.probed("east", ANOTHER)
    assert (east.uid, east.conditions[REACHABLE].reason) == ("uid-1", "AnotherCluster")
    assert east.unreachable_since is not None
    assert east.leaving_since is not None
    assert to_proto(east).conditions[1].status != "True"
    lost = east.unreachable_since
    registry.reading("files", Reading((OLD,)))
    registry.probed("east", ANOTHER)
    assert (east.unreachable_since, east.leaving_since is not None) == (lost, True)
    # The first one answers again.
    registry.probed("east", GOOD)
    assert (east.leaving_since, east.waiting, east.is_true(REACHABLE), east.is_true(CONFIGURED)) == (None, None, True, True)
    registry.probed("east", ANOTHER)
    registry.forget(east)
    registry.release(east)
    assert registry.records["east"].uid == "uid-2"
    assert ("disengaged", "east") in spy.take()


def test_it_is_known_over_restarts_which_access_leads_there(tmp_path: Path) -> None:
    registry, _, _ = held()
    again, _ = restarted(registry, tmp_path / "state")
    again.reading("files", Reading((NEW,)))
    assert streamed(again) == OLD.digest
    # Without the state file the old access is gone: the new one is handed out, but counts as not reached.
    bare, _ = make()
    kept = from_object(to_object(registry.records["east"]))
    assert kept is not None
    bare.restore(kept)
    bare.reading("files", Reading((NEW,)))
    assert bare.records["east"].conditions[REACHABLE].reason == "IdentityNotRead"
    bare.probed("east", FORBIDDEN)
    assert not bare.records["east"].is_true(REACHABLE)
    bare.probed("east", GOOD)
    assert bare.records["east"].is_true(REACHABLE)
    # The same access as before is believed at once.
    same, _ = make()
    kept = from_object(to_object(registry.records["east"]))
    assert kept is not None
    same.restore(kept)
    same.reading("files", Reading((OLD,)))
    assert same.records["east"].is_true(REACHABLE)


def test_that_another_cluster_answers_outlives_a_restart(tmp_path: Path) -> None:
    registry, _, east = held()
    registry.probed("east", ANOTHER)
    again, _ = restarted(registry, tmp_path / "state")
    again.reading("files", Reading((OLD,)))
    kept = again.records["east"]
    assert (kept.leaving_since, kept.is_true(REACHABLE)) == (east.leaving_since, False)
    again.probed("east", ANOTHER)
    assert (kept.leaving_since, kept.conditions[CONFIGURED].reason) == (east.leaving_since, "AnotherCluster")


def test_a_namespace_that_was_made_anew_has_its_name_at_once() -> None:
    registry, _ = make()
    part = found("web", shaped(cluster("web").kubeconfig, Shape(namespace="web")), "Namespace web#")
    registry.reading("files", Reading((part,)))
    registry.probed("web", GOOD)
    registry.hold("web")
    registry.probed("web", ANOTHER)
    assert (registry.records["web"].uid, registry.records["web"].leaving_since) == ("uid-2", None)


def test_a_cluster_of_which_nobody_reports_is_kept_until_it_is_forgotten() -> None:
    registry, _, east = held()
    registry.reading("files", Reading(()))
    registry.release_overdue(3600)
    assert east.conditions[CONFIGURED].reason == "Leaving"
    east.leaving_since -= timedelta(days=2)  # type: ignore[operator]
    registry.release_overdue(3600)
    assert registry.records["east"] is east
    assert east.conditions[CONFIGURED].reason == "LeftBehind"
    assert "reclock forget east" in east.conditions[CONFIGURED].message
    assert streamed(registry) == OLD.digest
    registry.forget(east)
    registry.release_overdue(3600)
    assert registry.records == {}


def test_a_leaving_cluster_that_the_host_tells_of_late_is_still_known() -> None:
    registry, _, east = held()
    registry.reading("files", Reading(()))
    kept = from_object(to_object(east))
    assert kept is not None
    fresh, _ = make()
    fresh.reading("files", Reading(()))
    fresh.restore(kept)
    assert fresh.records["east"].leaving_since == east.leaving_since
    # One that left meanwhile stays away.
    fresh.release(fresh.records["east"])
    fresh.restore(kept)
    assert fresh.records == {}


def test_a_taint_without_a_time_counts_from_when_it_was_first_seen() -> None:
    registry, _, east = held()
    registry.operated("east", Operator({}, {}, ({"key": "k", "value": "v", "effect": "NoExecute"}, {"key": "k", "effect": "NoSchedule"})))
    first = to_proto(east).taints[0].added_at.ToDatetime()
    assert first.year > 2000
    assert not to_proto(east).taints[1].HasField("added_at")
    east.tainted = {key: since - timedelta(hours=1) for key, since in east.tainted.items()}
    registry.operated("east", Operator({"a": "b"}, {}, east.operator.taints))
    later = to_proto(east).taints[0].added_at.ToDatetime()
    assert later == first - timedelta(hours=1), "another change of the object starts nothing anew"
    kept = from_object(to_object(east))
    assert kept is not None
    assert kept.tainted == east.tainted
    registry.operated("east", Operator())
    assert east.tainted == {}


async def test_the_prober_finds_out_where_changed_access_leads() -> None:
    async with KubeFake() as first, KubeFake() as second:
        second.uid = "another"
        registry = Registry(Hub(), ["files"])
        prober = Prober(
            Probe(interval=0.1, timeout=1), registry.probed, lambda *said: succession.identified(registry, *said)
        )
        registry.add_keeper(prober)
        registry.reading("files", Reading((found("east", first.kubeconfig(), "x"),)))
        east = registry.records["east"]
        await eventually(lambda: east.is_true(READY))
        registry.hold("east")
        registry.reading("files", Reading((found("east", second.kubeconfig(), "x"),)))
        await eventually(lambda: east.conditions[CONFIGURED].reason == "AnotherCluster")
        assert east.is_true(READY), "the old one answers with its own access"
        second.uid = first.uid
        await eventually(lambda: east.server == second.url and east.is_true(READY))
        assert (east.leaving_since, east.waiting) == (None, None)
        registry.reading("files", Reading(()))
        registry.release(east)
        await prober.close()
