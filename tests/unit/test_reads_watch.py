"""Watches: log and payloads joined, selectors, forms, initial state, gaps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY
from reads_fake import Fleet, fleet_of, kubeconfig, pod, status

from _fastpath.marker import DIFF, GAP, LEAVE, Marker
from services.aggregator.clock import overdue
from services.aggregator.clock.view import Snapshot
from services.aggregator.reads import watcher
from services.aggregator.reads.watch import WatchSession
from services.common.errors import unavailable
from services.common.kube.client import KubeClient

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
END = "k8s.io/initial-events-end"
STATE = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(watcher, "PATIENCE", 0.3)
    async with fleet_of("east", "west") as fleet:
        yield fleet


def told(event: dict) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"]["name"]


def version(event: dict) -> int:
    return int(event["object"]["metadata"]["resourceVersion"])


async def test_events_of_all_members_in_fleet_order(fleet: Fleet) -> None:
    start = fleet.clock.head
    async with fleet.watch(f"resourceVersion={start}") as stream:
        fleet.write("east", pod("a"))
        fleet.write("west", pod("b"))
        fleet.write("east", pod("a", n="2"))
        fleet.write("west", pod("b"), delete=True)
        events = [await stream.next() for _ in range(4)]
    assert [told(e) for e in events] == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    numbers = [version(e) for e in events]
    assert numbers == sorted(set(numbers)) and numbers[0] > start
    assert events[0]["object"]["kind"] == "Pod" and events[0]["object"]["spec"] == {"nodeName": "n0"}
    assert events[1]["object"]["metadata"]["annotations"]["reclock.dev/cluster"] == "west"


async def test_resume_gets_every_state_between_also_superseded_ones(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    start = fleet.clock.head
    for n in range(5):
        fleet.write("east", pod("a", n=str(n)))
    fleet.write("west", pod("b"))
    fleet.write("west", pod("b"), delete=True)
    async with fleet.watch(f"resourceVersion={start}") as stream:
        events = [await stream.next() for _ in range(7)]
    assert [e["object"]["metadata"]["labels"].get("n") for e in events[:5]] == list("01234")
    assert [e["type"] for e in events] == ["MODIFIED"] * 5 + ["ADDED", "DELETED"]


async def test_log_before_payload_and_payload_before_log(fleet: Fleet) -> None:
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        fleet.write("east", pod("warm"))
        await stream.next()
        member = fleet.members["east"]
        first = fleet.write("east", pod("a"), log=False)
        assert await stream.silent()
        fleet.clock.log("east", first)
        assert told(await stream.next()) == ("ADDED", "a")
        member.mute = True
        second = fleet.write("east", pod("b"))
        await asyncio.sleep(0.05)
        member.mute = False
        member.nudge()
        assert told(await stream.next()) == ("ADDED", "b") and second


async def test_one_member_watch_serves_many_clients(fleet: Fleet) -> None:
    head = fleet.clock.head
    async with fleet.watch(f"resourceVersion={head}") as one, fleet.watch(f"resourceVersion={head}") as two:
        fleet.write("east", pod("a"))
        assert await one.next() == await two.next()
    watches = [r for r in fleet.members["east"].requests if r.query.get("watch")]
    assert len(watches) == 1


async def test_label_selector_turns_leaving_into_deleted_with_the_old_labels(fleet: Fleet) -> None:
    async with fleet.watch(f"resourceVersion={fleet.clock.head}&labelSelector=app%3Dweb") as stream:
        fleet.write("east", pod("a", app="other"))
        fleet.write("east", pod("a", app="web"))
        fleet.write("east", pod("a", app="web", n="2"))
        fleet.write("east", pod("a", app="gone"))
        fleet.write("east", pod("a", app="gone"), delete=True)
        fleet.write("west", pod("z", app="web"))
        events = [await stream.next() for _ in range(4)]
    assert [told(e) for e in events] == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "z")]
    left = events[2]["object"]["metadata"]
    assert left["labels"] == {"app": "web", "n": "2"}
    assert int(left["resourceVersion"]) > version(events[1])
    assert events[2]["object"]["spec"] == {"nodeName": "n0"}


async def test_a_member_that_left_and_joined_again_is_watched_by_its_new_client(fleet: Fleet) -> None:
    """Its old client is closed: what it told came late by GETs, and without the states between."""
    member = fleet.members["east"]
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        obj = fleet.write("east", pod("a", n="0"))
        assert told(await stream.next()) == ("ADDED", "a")
        await member.client.close()
        member.client = await KubeClient.connect(kubeconfig(member.url), name="east")
        fleet.clock.members["east"].client = member.client
        fleet.write("east", pod("b"))
        assert told(await stream.next()) == ("ADDED", "b")
        for number in "123":
            obj["metadata"]["labels"]["n"] = number
            fleet.write("east", obj)
        seen = [(await stream.next())["object"]["metadata"]["labels"]["n"] for _ in range(3)]
    assert seen == ["1", "2", "3"]


async def test_what_is_made_ahead_for_one_client_is_bounded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand clients that stop reading must not cost a thousand times all that happened meanwhile."""
    sizes: list[int] = []
    write = WatchSession._write

    async def noting(self: WatchSession, data: bytes) -> None:
        sizes.append(len(data))
        await write(self, data)

    start = fleet.clock.head
    for number in range(20):
        big = pod(f"p{number}")
        big["metadata"]["annotations"] = {"x": "y" * 30_000}
        fleet.write("east", big)
    monkeypatch.setattr(WatchSession, "_write", noting)
    async with fleet.watch(f"resourceVersion={start}") as stream:
        assert [told(await stream.next()) for _ in range(20)] == [("ADDED", f"p{n}") for n in range(20)]
    assert max(sizes) < watcher.FLUSH + 40_000


async def test_what_is_there_together_is_one_write(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = WatchSession._write

    async def noting(self: WatchSession, data: bytes) -> None:
        written.append(data.count(b'"type":"'))
        await write(self, data)

    monkeypatch.setattr(WatchSession, "_write", noting)
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        fleet.write("east", pod("first"))
        assert told(await stream.next()) == ("ADDED", "first")
        written.clear()
        member = fleet.members["east"]
        objects = [member.write(pod(f"p{number}")) for number in range(50)]
        await asyncio.sleep(0.2)  # their payloads are here
        for one in objects:
            fleet.clock.log("east", one)  # in one turn of the loop
        assert [told(await stream.next()) for _ in objects] == [("ADDED", f"p{number}") for number in range(50)]
    assert sum(written) == 50 and len(written) <= 2, written


async def test_namespace_and_name_are_judged_on_markers(fleet: Fleet) -> None:
    head = fleet.clock.head
    async with (
        fleet.watch(f"resourceVersion={head}", "/api/v1/namespaces/two/pods") as space,
        fleet.watch(f"resourceVersion={head}&fieldSelector=metadata.name%3Db") as name,
    ):
        fleet.write("east", pod("a", ns="one"))
        fleet.write("east", pod("b", ns="one"))
        fleet.write("west", pod("c", ns="two"))
        assert told(await space.next()) == ("ADDED", "c")
        assert told(await name.next()) == ("ADDED", "b")


async def test_fault_12_field_selector_on_a_watch_has_its_own_set(fleet: Fleet) -> None:
    old = fleet.write("east", pod("old"))
    other = pod("other")
    other["spec"]["nodeName"] = "n9"
    other = fleet.write("east", other)
    query = f"resourceVersion={fleet.clock.head}&fieldSelector=spec.nodeName%3Dn0"
    async with fleet.watch(query) as stream:
        moved = json.loads(json.dumps(old))
        moved["spec"]["nodeName"] = "n1"
        fleet.write("east", moved)  # known from the list at the start: it leaves
        fleet.write("east", other)  # never matched: nothing
        other["spec"]["nodeName"] = "n0"
        fleet.write("east", other)  # enters
        fleet.write("east", other)
        fleet.write("east", other, delete=True)
        events = [await stream.next() for _ in range(4)]
    assert [told(e) for e in events] == [
        ("DELETED", "old"), ("ADDED", "other"), ("MODIFIED", "other"), ("DELETED", "other")]


async def test_field_selector_as_table_is_judged_on_whole_objects(fleet: Fleet) -> None:
    query = f"resourceVersion={fleet.clock.head}&fieldSelector=status.phase%3DRunning"
    async with fleet.watch(query, Accept=TABLE) as stream:
        pending = pod("p")
        pending["status"]["phase"] = "Pending"
        fleet.write("east", pending)
        fleet.write("east", pod("r"))
        event = await stream.next()
    assert event["object"]["rows"][0]["cells"] == ["r", "east", "1/1"]


async def test_field_set_that_cannot_be_rebuilt_tells_deleted_for_touched_objects(fleet: Fleet) -> None:
    obj = fleet.write("east", pod("a"))
    fleet.members["east"].fail = lambda: status(503, "ServiceUnavailable")
    async with fleet.watch(f"resourceVersion={fleet.clock.head}&fieldSelector=spec.nodeName%3Dn0") as stream:
        obj["spec"]["nodeName"] = "n1"
        fleet.write("east", obj)
        assert told(await stream.next()) == ("DELETED", "a")
        fleet.write("east", obj)
        assert await stream.silent()


async def test_field_set_of_a_member_that_was_away_is_asked_for_when_it_is_back(fleet: Fleet) -> None:
    obj, other = fleet.write("east", pod("a")), pod("other")
    other["spec"]["nodeName"] = "n9"
    other = fleet.write("east", other)
    fleet.members["east"].fail = lambda: status(503, "ServiceUnavailable")
    async with fleet.watch(f"resourceVersion={fleet.clock.head}&fieldSelector=spec.nodeName%3Dn0") as stream:
        fleet.members["east"].fail = None
        fleet.write("east", other)  # never matched: nothing
        fleet.write("east", obj)
        assert told(await stream.next()) == ("MODIFIED", "a")


async def test_field_set_of_members_that_answered_is_sure_although_another_is_away(fleet: Fleet) -> None:
    other = pod("other")
    other["spec"]["nodeName"] = "n9"
    other = fleet.write("east", other)
    fleet.members["west"].fail = lambda: status(503, "ServiceUnavailable")
    async with fleet.watch(f"resourceVersion={fleet.clock.head}&fieldSelector=spec.nodeName%3Dn0") as stream:
        fleet.write("east", other)  # never matched, and its member said so
        assert await stream.silent()


async def test_initial_events_are_all_that_the_client_has_whoever_is_away(fleet: Fleet) -> None:
    other = pod("other")
    other["spec"]["nodeName"] = "n9"
    other = fleet.write("east", other)
    fleet.members["west"].fail = lambda: status(503, "ServiceUnavailable")
    async with fleet.watch("fieldSelector=spec.nodeName%3Dn0") as stream:
        fleet.write("east", other)
        assert await stream.silent()


@pytest.mark.parametrize("kind", [0, DIFF])
async def test_field_set_has_what_expired_at_the_version_that_the_member_is_asked_for(fleet: Fleet, kind: int) -> None:
    """Several go at one version of their member, and the client's version lies between them."""
    first, last, other = fleet.write("east", pod("a")), fleet.write("east", pod("b")), pod("other")
    other["spec"]["nodeName"] = "n9"
    other = fleet.write("east", other)
    east = fleet.members["east"]
    for name in ("b", "other"):
        east.objects.pop(f"default/{name}")  # the list at the next version lacks all three
    gone = fleet.write("east", first, delete=True)["metadata"]["resourceVersion"]
    async with fleet.watch(f"resourceVersion={fleet.clock.head}&fieldSelector=spec.nodeName%3Dn0") as stream:
        for obj in (other, last):
            obj["metadata"]["resourceVersion"] = gone
            if not kind:
                east.events.append((int(gone), "DELETED", obj))
            fleet.clock.log("east", obj, delete=True, kind=kind)
        assert told(await stream.next()) == ("DELETED", "b"), "and nothing of the other, which never matched"
        assert await stream.silent()


async def test_field_set_that_a_member_may_have_told_of_another_life_tells_deleted(fleet: Fleet) -> None:
    """It was set back before it was asked, and nobody had noticed."""
    obj, known = fleet.write("east", pod("a")), fleet.write("east", pod("b"))
    east = fleet.members["east"]
    east.objects.pop("default/a")
    east.history[east.version] = dict(east.objects)
    async with fleet.watch(f"resourceVersion={fleet.clock.head}&fieldSelector=spec.nodeName%3Dn0") as stream:
        for one in (obj, known):
            one["metadata"]["resourceVersion"] = "200"
            fleet.clock.log("east", one, delete=True, kind=DIFF, incarnation="east-uid/1")
            assert told(await stream.next()) == ("DELETED", one["metadata"]["name"])


async def test_field_set_while_nobody_can_tell_it_is_503(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses would tell the client of deletions of what it never had."""
    fleet.write("east", pod("a"))

    async def away(version: int) -> Snapshot:
        raise unavailable("the store of fleet versions does not answer", retry_after=1)

    monkeypatch.setattr(fleet.clock, "vector_at", away)
    query = f"watch=1&resourceVersion={fleet.clock.head}&fieldSelector=spec.nodeName%3Dn0"
    code, body = await fleet.get(f"/api/v1/pods?{query}")
    assert (code, body["details"]["retryAfterSeconds"]) == (503, 1)


async def test_bad_field_is_400_on_watches_too(fleet: Fleet) -> None:
    code, _body = await fleet.get("/api/v1/pods?watch=1&fieldSelector=spec.nope%3D1")
    assert code == 400


async def test_table_columns_come_once_and_the_version_stands_twice(fleet: Fleet) -> None:
    fleet.members["west"].columns = ["Ready", "Name"]
    fleet.write("east", pod("known"))
    async with fleet.watch(f"resourceVersion={fleet.clock.head}", Accept=TABLE) as stream:
        fleet.write("east", pod("a"))
        fleet.write("west", pod("b"))
        first, second = await stream.next(), await stream.next()
    assert [c["name"] for c in first["object"]["columnDefinitions"]] == ["Name", "Cluster", "Ready"]
    assert second["object"]["columnDefinitions"] is None
    assert second["object"]["rows"][0]["cells"] == ["b", "west", "1/1"]
    for event in (first, second):
        inner = event["object"]["rows"][0]["object"]["metadata"]["resourceVersion"]
        assert event["object"]["metadata"]["resourceVersion"] == inner
    async with fleet.watch(f"resourceVersion={fleet.clock.head}", Accept=TABLE) as late:
        fleet.write("east", pod("c"))
        event = await late.next()
    # The member's stream sent its columns long ago: a later client gets them all the same.
    assert [c["name"] for c in event["object"]["columnDefinitions"]] == ["Name", "Cluster", "Ready"]


async def test_fault_30_state_first_with_exactly_one_end_bookmark(fleet: Fleet) -> None:
    for i in range(4):
        fleet.write("west" if i % 2 else "east", pod(f"p{i}"))
    at = fleet.clock.head
    async with fleet.watch(STATE) as stream:
        events = [await stream.next() for _ in range(5)]
        fleet.write("east", pod("p0", n="2"))
        later = await stream.next()
    assert [told(e) for e in events[:4]] == [("ADDED", f"p{i}") for i in range(4)]
    assert all(e["object"]["kind"] == "Pod" and e["object"]["apiVersion"] == "v1" for e in events)
    assert events[4]["type"] == "BOOKMARK" and events[4]["object"]["metadata"]["annotations"] == {END: "true"}
    assert version(events[4]) == at and told(later) == ("MODIFIED", "p0")


async def test_end_bookmark_comes_from_an_empty_fleet_and_with_a_member_away(fleet: Fleet) -> None:
    fleet.clock.left_out = ["west"]
    async with fleet.watch(STATE) as stream:
        event = await stream.next()
    assert event["type"] == "BOOKMARK" and event["object"]["metadata"]["annotations"] == {END: "true"}
    assert fleet.clock.gaps[0][0] == "west"


@pytest.mark.parametrize("query", ["", "resourceVersion=0", "resourceVersion="])
async def test_without_a_version_state_comes_first_without_bookmark(fleet: Fleet, query: str) -> None:
    fleet.write("east", pod("a"))
    async with fleet.watch(query) as stream:
        assert told(await stream.next()) == ("ADDED", "a")
        fleet.write("east", pod("b"))
        assert told(await stream.next()) == ("ADDED", "b")


async def test_initial_events_false_begins_now(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    async with fleet.watch("sendInitialEvents=false&resourceVersionMatch=NotOlderThan") as stream:
        fleet.write("east", pod("b"))
        assert told(await stream.next()) == ("ADDED", "b")


async def test_a_version_of_the_future_waits_on_plain_watches(fleet: Fleet) -> None:
    ahead = fleet.clock.head + (3 << 7)
    async with fleet.watch(f"resourceVersion={ahead}") as stream:
        fleet.write("east", pod("a"))
        fleet.write("east", pod("b"))
        assert await stream.silent()
        fleet.write("east", pod("c"))
        fleet.write("east", pod("d"))
        assert told(await stream.next())[1] in ("c", "d")
    async with fleet.watch(f"resourceVersion={fleet.clock.head + 999}&{STATE}") as stream:
        event = await stream.next()
    assert event["type"] == "ERROR" and event["object"]["code"] == 504
    assert event["object"]["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_fault_32_a_version_before_the_window_is_410(fleet: Fleet) -> None:
    async with fleet.watch("resourceVersion=5") as stream:
        event = await stream.next()
        assert event["type"] == "ERROR" and event["object"]["code"] == 410 and event["object"]["reason"] == "Expired"
        assert event["object"]["message"].startswith("too old resource version: 5 (")
        assert await stream.next() is None


async def test_time_out_ends_in_order_with_a_bookmark(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    at = fleet.clock.head
    async with fleet.watch(f"resourceVersion={at}&timeoutSeconds=1&allowWatchBookmarks=true") as stream:
        event = await stream.next()
        assert event["type"] == "BOOKMARK" and version(event) == at and "annotations" not in event["object"]["metadata"]
        assert await stream.next() is None


async def test_a_log_that_is_behind_the_client_sends_it_no_bookmark(fleet: Fleet) -> None:
    query = f"resourceVersion={fleet.clock.head + 1000}&timeoutSeconds=1&allowWatchBookmarks=true"
    async with fleet.watch(query) as stream:
        assert await stream.next() is None, "only the client says that there is such a version"


async def test_bookmarks_come_by_the_minute(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "BOOKMARK_EVERY", 0.2)
    async with fleet.watch(f"resourceVersion={fleet.clock.head}&allowWatchBookmarks=true") as stream:
        fleet.write("east", pod("a"))
        assert told(await stream.next()) == ("ADDED", "a")
        event = await stream.next()
        assert event["type"] == "BOOKMARK" and version(event) == fleet.clock.head
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        assert await stream.silent(0.5)


async def test_payload_that_cannot_be_had_is_skipped_when_a_later_one_exists(fleet: Fleet) -> None:
    start = fleet.clock.head
    member = fleet.members["east"]
    fleet.write("east", pod("a", n="1"))
    fleet.write("east", pod("a", n="2"))
    member.events.clear()  # the member's watch forgot both
    async with fleet.watch(f"resourceVersion={start}") as stream:
        fleet.write("west", pod("z"))
        member.version += 5
        fleet.write("east", pod("nudge"))
        events = [await stream.next() for _ in range(3)]
    # The first state is gone; the second is read from the member, and is what this watch first has of it.
    assert [told(e) for e in events] == [("ADDED", "a"), ("ADDED", "z"), ("ADDED", "nudge")]
    assert events[0]["object"]["metadata"]["labels"] == {"n": "2"}


async def test_deleted_without_a_payload_shows_what_the_marker_knows(fleet: Fleet) -> None:
    obj = fleet.write("east", pod("a", app="web"))
    async with fleet.watch(f"resourceVersion={fleet.clock.head}&labelSelector=app%3Dweb") as stream:
        marker = Marker("east", "east-uid/0", "default", "a", "uid-default-a", int(obj["metadata"]["resourceVersion"]),
                        {"app": "web"}, deleted=True, kind=LEAVE)  # fmt: skip
        fleet.clock.commit({}, marker)
        event = await stream.next()
    meta = event["object"]["metadata"]
    assert told(event) == ("DELETED", "a") and meta["uid"] == "uid-default-a" and meta["labels"] == {"app": "web"}
    assert int(meta["resourceVersion"]) == fleet.clock.head


async def test_a_deletion_found_by_a_list_never_shows_the_object_made_at_its_version(fleet: Fleet) -> None:
    """Both bear the list's version: what was made last on the member is what the list was taken at."""
    old = fleet.write("east", pod("a"))
    start = fleet.clock.head
    async with fleet.watch(f"resourceVersion={start}") as stream:
        fleet.members["east"].write(old, delete=True)
        new = fleet.members["east"].write(pod("a") | {"metadata": {**pod("a")["metadata"], "uid": "another"}})
        at = new["metadata"]["resourceVersion"]
        await asyncio.sleep(0.1)  # its payload is here
        fleet.clock.log("east", old | {"metadata": {**old["metadata"], "resourceVersion": at}}, delete=True, kind=DIFF)
        fleet.clock.log("east", new, kind=DIFF)
        events = [await stream.next() for _ in range(2)]
    assert [told(event) for event in events] == [("DELETED", "a"), ("ADDED", "a")]
    uids = [event["object"]["metadata"]["uid"] for event in events]
    assert uids == [old["metadata"]["uid"], "another"]


async def test_late_payload_opens_a_gap_and_the_rest_goes_on(fleet: Fleet) -> None:
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        fleet.write("east", pod("warm"))
        await stream.next()
        member = fleet.members["east"]
        member.mute, member.fail_get = True, lambda: status(503, "ServiceUnavailable")
        obj = fleet.write("east", pod("a"))
        fleet.write("west", pod("b"))
        assert await stream.silent(0.1)
        assert told(await stream.next()) == ("ADDED", "b")
        assert fleet.clock.gaps and fleet.clock.gaps[0][0] == "east"
        # The gap heals: the object is sent anew, and this watch never sent it.
        member.mute, member.fail_get = False, None
        fleet.clock.log("east", obj, kind=GAP)
        event = await stream.next()
    assert told(event) == ("ADDED", "a") and version(event) == fleet.clock.head


async def test_a_watch_for_payloads_that_went_silent_is_opened_anew(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overdue, "SILENT", 0.2)  # of a second
    labels = {"resource": "pods", "cluster": "east", "feed": "payloads"}

    def renewed() -> float:
        return REGISTRY.get_sample_value("reclock_aggregator_clock_watches_renewed_total", labels) or 0.0

    before, member = renewed(), fleet.members["east"]
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        fleet.write("east", pod("warm"))
        await stream.next()
        member.go_deaf()
        fleet.write("east", pod("a", n="1"))
        fleet.write("east", pod("a", n="2"))
        states = [await stream.next() for _ in range(2)]  # the object itself, if asked for, would be the second
        assert [one["object"]["metadata"]["labels"]["n"] for one in states] == ["1", "2"]
        member.fail_get = lambda: status(503, "ServiceUnavailable")
        fleet.write("east", pod("b"))
        fleet.write("east", pod("a"), delete=True)
        assert [told(await stream.next()) for _ in range(2)] == [("ADDED", "b"), ("DELETED", "a")]
    assert renewed() == before + 1 and not fleet.clock.gaps


async def test_what_a_state_was_sent_without_is_added_when_it_comes(fleet: Fleet) -> None:
    obj = fleet.write("west", pod("b"))
    fleet.write("east", pod("a"))
    fleet.clock.left_out = ["west"]
    async with fleet.watch(STATE) as stream:
        assert told(await stream.next()) == ("ADDED", "a")
        assert (await stream.next())["type"] == "BOOKMARK"
        fleet.clock.left_out = []
        fleet.clock.log("west", obj, kind=GAP)
        assert told(await stream.next()) == ("ADDED", "b")
        fleet.write("west", obj)
        assert told(await stream.next()) == ("MODIFIED", "b")


async def test_a_members_410_costs_clients_nothing(fleet: Fleet) -> None:
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        fleet.write("east", pod("a"))
        await stream.next()
        member = fleet.members["east"]
        await member._runner.cleanup()  # the member restarts: its watch cache is gone
        member.events.clear()
        await member.client.close()
        await member.start()
        fleet.clock.members["east"].client = member.client
        member.watch_from = member.version + 1
        missed = member.write(pod("a", n="2"))
        fleet.clock.log("east", missed)
        event = await stream.next()
    assert told(event) == ("MODIFIED", "a") and event["object"]["metadata"]["labels"] == {"n": "2"}


async def test_a_member_that_joins_is_told_on_open_watches(fleet: Fleet) -> None:
    away = fleet.clock.members.pop("west")
    fleet.clock.state.positions.pop("west")
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        fleet.write("east", pod("a"))
        await stream.next()
        objects = [fleet.members["west"].write(pod(f"w{i}")) for i in range(3)]
        fleet.clock.members["west"] = away
        for obj in objects:
            fleet.clock.log("west", obj)
            away.position = fleet.clock.state.positions["west"]
        assert [told(await stream.next()) for _ in range(3)] == [("ADDED", f"w{i}") for i in range(3)]


async def test_another_incarnations_objects_are_never_shown_from_old_payloads(fleet: Fleet) -> None:
    from services.aggregator.clock.position import Position

    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        fleet.write("east", pod("a", life="1"))
        assert (await stream.next())["object"]["metadata"]["labels"] == {"life": "1"}
        # Restored: the same version means another state now.
        member = fleet.members["east"]
        again = json.loads(json.dumps(member.objects["default/a"]))
        again["metadata"]["labels"] = {"life": "2"}
        member.objects["default/a"] = again
        member.history[member.version] = dict(member.objects)
        member.events[-1] = (member.version, "ADDED", again)
        fleet.clock.members["east"].position = Position("east-uid/1", member.version, member.version)
        fleet.clock.log("east", again, incarnation="east-uid/1")
        event = await stream.next()
    assert told(event) == ("MODIFIED", "a") and event["object"]["metadata"]["labels"] == {"life": "2"}


async def test_member_authorization_leaves_out_and_ends_on_change(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.aggregator.reads import access, watch

    monkeypatch.setattr(watch, "RECHECK", 0.0)
    monkeypatch.setattr(access, "KEEP", 0.0)
    fleet.aggregated = fleet.clock.aggregated = replace(fleet.aggregated, authorization="Member")
    fleet.members["west"].denied.add("jane")
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        fleet.write("west", pod("secret"))
        fleet.write("east", pod("a"))
        assert told(await stream.next()) == ("ADDED", "a")
        assert any("west" in text for text in fleet.calls[-1].warnings)
        fleet.members["west"].denied.clear()
        fleet.write("east", pod("b"))
        event = await stream.next()
        event = event if event["type"] == "ERROR" else await stream.next(15)
    assert event["type"] == "ERROR" and event["object"]["code"] == 410


@pytest.mark.parametrize("query", ["resourceVersion={head}", STATE])
async def test_what_a_member_was_not_asked_about_is_neither_shown_nor_passed_over(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    from services.aggregator.reads import access, watch

    monkeypatch.setattr(watch, "RECHECK", 0.0)
    monkeypatch.setattr(access, "KEEP", 0.0)
    fleet.aggregated = fleet.clock.aggregated = replace(fleet.aggregated, authorization="Member")
    fleet.members["west"].fail_review = lambda: status(500, "InternalError")
    late = fleet.clock.members.pop("west") if query == STATE else None  # joins when the watch is open already
    start = fleet.clock.head
    async with fleet.watch(query.format(head=start)) as stream:
        if late is not None:
            assert (await stream.next())["type"] == "BOOKMARK"
            fleet.clock.members["west"] = late
        fleet.write("east", pod("a"))
        assert told(await stream.next()) == ("ADDED", "a")
        last = fleet.clock.head
        fleet.write("west", pod("secret"))
        fleet.write("east", pod("b"))
        assert await stream.next() is None, "it ends before the event of west"
    async with fleet.watch(f"resourceVersion={last}") as stream:
        assert await stream.next() is None, "as long as west cannot be asked"
    fleet.members["west"].fail_review = None
    async with fleet.watch(f"resourceVersion={last}") as stream:  # it consents: nothing was lost
        assert [told(await stream.next()) for _ in range(2)] == [("ADDED", "secret"), ("ADDED", "b")]
    fleet.members["west"].denied.add("jane")
    async with fleet.watch(f"resourceVersion={last}") as stream:  # it says no
        assert told(await stream.next()) == ("ADDED", "b")
        fleet.members["west"].denied.clear()
        fleet.write("east", pod("c"))
        event = await stream.next()
        event = event if event["type"] == "ERROR" else await stream.next(15)
    assert event["type"] == "ERROR" and event["object"]["code"] == 410


async def test_what_went_with_a_member_that_left_is_not_kept_by_who_resumes(fleet: Fleet) -> None:
    """Under `authorization: Member`: the member cannot be asked any more, and the client may have its objects."""
    from _fastpath.marker import LEAVE

    fleet.aggregated = fleet.clock.aggregated = replace(fleet.aggregated, authorization="Member")
    obj = fleet.write("west", pod("a"))
    start = fleet.clock.head
    fleet.clock.log("west", obj, delete=True, kind=LEAVE)
    fleet.clock.members.pop("west")
    async with fleet.watch(f"resourceVersion={start}") as stream:
        event = await stream.next()
        assert event["type"] == "ERROR" and event["object"]["code"] == 410


async def test_a_watch_ends_when_its_resource_is_aggregated_in_another_way(fleet: Fleet) -> None:
    """Before anything that came since: others may have a say in it."""
    async with fleet.watch(f"resourceVersion={fleet.clock.head}") as stream:
        fleet.write("east", pod("a"))
        await stream.next()
        fleet.clock.aggregated = replace(fleet.clock.aggregated, authorization="Member")
        fleet.write("east", pod("b"))
        event = await stream.next()
    assert event["type"] == "ERROR" and event["object"]["code"] == 410


@pytest.mark.parametrize(("query", "code"), [
    ("resourceVersion=garbage", 400), ("timeoutSeconds=x", 400), ("labelSelector=%21%21", 400),
    ("sendInitialEvents=true", 422), ("resourceVersionMatch=NotOlderThan", 422),
    ("sendInitialEvents=true&resourceVersionMatch=Exact", 422), ("continue=x", 422), ("continue=x&limit=5", 422),
    ("continue=x&resourceVersion=0", 422), ("continue=x&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", 422),
])  # fmt: skip
async def test_bad_queries(fleet: Fleet, query: str, code: int) -> None:
    got, body = await fleet.get(f"/api/v1/pods?watch=1&{query}")
    assert got == code and body["kind"] == "Status"


@pytest.mark.parametrize("hard", [1, 100])
async def test_a_slow_client_does_not_hold_others_and_misses_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, hard: int
) -> None:
    from services.aggregator.reads import payload_feed

    for name, size in (("KEEP", 1), ("SLACK", 0), ("HARD", hard), ("PRIVATE", 1)):
        monkeypatch.setattr(payload_feed, name, size * 1024 * 1024)
    start = fleet.clock.head
    async with fleet.watch(f"resourceVersion={start}") as slow, fleet.watch(f"resourceVersion={start}") as quick:
        for i in range(300):
            big = pod(f"p{i % 7}")
            big["spec"]["filler"] = "x" * 50_000
            fleet.write("east", big)
            if i % 50 == 0:
                await asyncio.sleep(0)
        seen = [version(await quick.next()) for _ in range(300)]
        assert seen == sorted(set(seen))
        late = [version(await slow.next()) for _ in range(300)]
    assert late == seen
