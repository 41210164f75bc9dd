"""The set of aggregated types over members that come, go, and do not answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from writes_fake import FakeCluster

from services.aggregator.aggregations import Aggregations
from services.aggregator.aggregations.spec import selector_text
from services.aggregator.types import Aggregated
from services.common import errors
from services.common.errors import MemberUnreachable

DOCUMENT = ("GET", "/apis/example.com/v1")


def document(*entries: tuple[str, str, bool]) -> Any:
    return {"kind": "APIResourceList", "resources": [
        {"name": name, "kind": kind, "namespaced": namespaced} for name, kind, namespaced in entries
    ]}  # fmt: skip


WIDGETS = document(("widgets", "Widget", False), ("widgets/status", "Widget", False))


def aggregation(name: str = "widgets", made: str = "2026-01-01T00:00:00Z", **spec: Any) -> Any:
    whole = {"group": "example.com", "version": "v1", "resource": "widgets", **spec}
    return {"metadata": {"name": name, "creationTimestamp": made}, "spec": whole}


class Rig:
    """A registry over two members; `look` is one round."""

    def __init__(self) -> None:
        self.east, self.west, self.host = FakeCluster("east"), FakeCluster("west"), FakeCluster("host")
        self.members = {
            one.name: SimpleNamespace(client=one, reachable=True) for one in (self.east, self.west)
        }
        synced = asyncio.Event()
        synced.set()
        fleet: Any = SimpleNamespace(members=self.members, synced=synced, subscribe=lambda _: None)
        host: Any = self.host
        self.registry = Aggregations(host, fleet)
        self.sets: list[list[Aggregated]] = []
        self.registry.on_change(lambda current: self.sets.append(list(current)))
        self.put(aggregation())

    def put(self, obj: Any) -> None:
        self.registry._informer.store[("", obj["metadata"]["name"])] = obj

    async def look(self) -> bool:
        return await self.registry._resolve()

    def reported(self) -> dict[str, Any]:
        """The conditions written last, by type."""
        return {one["type"]: one for one in self.host.sent("PATCH")[-1]["status"]["conditions"]}


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.east.answers[DOCUMENT] = WIDGETS
    return made


async def test_kind_and_scope_come_from_whoever_serves_the_type(rig: Rig) -> None:
    assert await rig.look() is False
    found = rig.registry.lookup("example.com", "widgets")
    assert found is not None and (found.kind, found.namespaced) == ("Widget", False)
    assert rig.registry.lookup_kind("example.com/v2", "Widget") == found
    assert rig.reported()["Served"]["message"] == "served by east"


@pytest.mark.parametrize("trouble", [MemberUnreachable("away"), errors.not_found("x", "y"), {"kind": "Status"}])
async def test_type_that_nobody_serves_for_a_moment_stays_what_it_was(rig: Rig, trouble: Any) -> None:
    """Another scope or none would stop the clock: every watch would see its objects deleted."""
    await rig.look()
    before = rig.registry.all()
    rig.east.answers[DOCUMENT] = trouble
    assert await rig.look() is True, "it is looked at again soon"
    assert rig.registry.all() == before and len(rig.sets) == 1
    assert rig.reported()["Served"]["status"] == "False"


async def test_members_that_are_away_change_nothing(rig: Rig) -> None:
    await rig.look()
    before = rig.registry.all()
    for member in rig.members.values():
        member.reachable = False
    await rig.look()
    assert rig.registry.all() == before


async def test_after_a_restart_nothing_is_known_until_who_may_serve_it_answers(rig: Rig) -> None:
    """The host's 404 instead would make clients drop what they have."""
    rig.members["east"].reachable = False
    assert await rig.look() is True
    assert rig.registry.lookup("example.com", "widgets") is None
    assert rig.registry.unsettled("example.com", "widgets")
    rig.members["east"].reachable = True
    await rig.look()
    assert rig.registry.lookup("example.com", "widgets") and not rig.registry.unsettled("example.com", "widgets")


async def test_page_of_a_proxy_is_no_answer(rig: Rig) -> None:
    rig.west.answers[DOCUMENT] = ["login"]
    assert await rig.look() is True, "west is unknown, and asked again"
    assert rig.registry.all() != []


async def test_type_that_no_cluster_has_is_accepted_with_the_reason(rig: Rig) -> None:
    rig.east.answers.clear()
    assert await rig.look() is True
    assert rig.registry.all() == [] and rig.registry.resolved.is_set()
    accepted = rig.reported()["Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("False", "NotServed")
    assert "widgets in example.com/v1" in accepted["message"]


async def test_named_kind_and_scope_need_no_cluster(rig: Rig) -> None:
    rig.east.answers.clear()
    rig.put(aggregation(kind="Gadget", scope="Namespaced"))
    await rig.look()
    (found,) = rig.registry.all()
    assert (found.kind, found.namespaced) == ("Gadget", True)


async def test_of_two_for_one_type_the_older_counts(rig: Rig) -> None:
    rig.put(aggregation("a-newer", "2026-02-01T00:00:00Z", authorization="Member"))
    await rig.look()
    assert [one.name for one in rig.registry.all()] == ["widgets"]
    assert rig.reported()["Accepted"]["reason"] == "Duplicate"


async def test_deleted_aggregation_goes(rig: Rig) -> None:
    await rig.look()
    rig.registry._informer.store.clear()
    await rig.look()
    assert rig.registry.all() == [] and len(rig.sets) == 2


async def test_status_is_written_when_it_says_something_new_only(rig: Rig) -> None:
    await rig.look()
    written = rig.host.sent("PATCH")[-1]["status"]
    rig.put({**aggregation(), "status": written})
    await rig.look()
    assert len(rig.host.sent("PATCH")) == 1


LISTED = ("GET", "/apis/example.com/v1/widgets")


async def test_objects_of_the_host_that_nobody_sees_are_told_of(rig: Rig) -> None:
    await rig.look()
    assert rig.reported()["HostObjectsShown"]["reason"] == "NoneThere", "the host does not have the type"
    rig.host.answers[LISTED] = {"metadata": {"remainingItemCount": 2, "continue": "x"}, "items": [{}]}
    await rig.look()
    said = rig.reported()["HostObjectsShown"]
    assert (said["status"], said["reason"]) == ("False", "Hidden")
    assert said["message"].startswith("3 widgets of the host are not shown; set includeHost: true")
    rig.host.answers[DOCUMENT] = WIDGETS
    rig.put(aggregation(includeHost=True))
    await rig.look()
    assert rig.reported()["HostObjectsShown"]["status"] == "True"


async def test_who_lists_a_type_of_which_some_are_hidden_is_warned(rig: Rig) -> None:
    rig.host.answers[LISTED] = {"metadata": {}, "items": [{}]}
    await rig.look()
    found = rig.registry.lookup("example.com", "widgets")
    assert found is not None and "'widgets' has no includeHost" in str(rig.registry.warning(found))
    rig.host.answers[LISTED] = MemberUnreachable("busy")
    await rig.look()
    assert rig.registry.warning(found), "the host did not say otherwise"
    rig.host.answers[LISTED] = {"metadata": {}, "items": []}
    await rig.look()
    assert rig.registry.warning(found) is None


async def test_pods_of_the_host_are_no_news_to_who_lists_pods(rig: Rig) -> None:
    rig.registry._informer.store.clear()
    rig.put(aggregation("pods", group="", resource="pods", kind="Pod", scope="Namespaced"))
    rig.host.answers[("GET", "/api/v1/pods")] = {"metadata": {}, "items": [{}]}
    await rig.look()
    found = rig.registry.lookup("", "pods")
    assert found is not None and rig.registry.warning(found) is None
    assert rig.reported()["HostObjectsShown"]["status"] == "False"


async def test_host_that_does_not_say_what_it_has_changes_nothing(rig: Rig) -> None:
    rig.host.answers[LISTED] = {"metadata": {}, "items": [{}]}
    await rig.look()
    rig.put({**aggregation(), "status": rig.host.sent("PATCH")[-1]["status"]})
    rig.host.answers[LISTED] = MemberUnreachable("busy")
    await rig.look()
    assert len(rig.host.sent("PATCH")) == 1
    assert "HostObjectsShown" in rig.reported()


async def test_host_is_asked_once_the_set_is_known(rig: Rig) -> None:
    rig.registry.on_change(lambda current: rig.host.answers.setdefault(LISTED, {"items": [{}]}))
    await rig.look()
    assert rig.reported()["HostObjectsShown"]["reason"] == "Hidden"


async def test_selector_that_cannot_be_used_names_the_field(rig: Rig) -> None:
    rig.put(aggregation(clusters={"matchExpressions": [{"key": "a", "operator": "Gt"}]}))
    await rig.look()
    assert rig.registry.all() == []
    assert "spec.clusters.matchExpressions" in rig.reported()["Accepted"]["message"]


def test_selectors_as_text() -> None:
    selector = {"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [
        {"key": "c", "operator": "In", "values": ["x", "y"]}, {"key": "d", "operator": "DoesNotExist"},
        {"key": "e", "operator": "Exists"}, {"key": "f", "operator": "NotIn", "values": ["z"]},
    ]}  # fmt: skip
    assert selector_text(selector) == "a=1,b=2,c in (x,y),!d,e,f notin (z)"
    assert selector_text(None) == ""
