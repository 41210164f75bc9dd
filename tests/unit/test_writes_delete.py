"""Deletions: dry runs, preconditions, collections over several clusters, and the log's view of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from writes_fake import PODS, World, answer, call, pod, refused

from services.aggregator.writes import Writes, collection, delete
from services.common import errors
from services.common.errors import MemberUnreachable

ALL = "/api/v1/namespaces/ns/pods"
ONE = ALL + "/web"


@pytest.fixture
def world() -> World:
    made = World()
    made.clock.put("east", "web", "u1")
    return made


def listed(*items: Any) -> Any:
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "90"}, "items": list(items)}


async def test_waits_until_the_log_has_what_was_deleted(world: World) -> None:
    """The member may hold another object of that name by now: the answer says what went."""
    world.east.answers[("DELETE", ONE)] = {"kind": "Status", "details": {"uid": "u2"}}
    await delete.delete(world.context, call("DELETE", ONE), PODS)
    assert world.clock.deletions == [("east", "u2")]


async def test_what_is_gone_at_once_is_answered_under_its_deletion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion without grace answers the object under the version of its deletion, which the log may have by then."""
    world.east.answers[("DELETE", ONE)] = pod(uid="u1", resourceVersion="18")
    marker = world.clock.marker("east", "ns", "web")

    async def deleted(*_: Any, **__: Any) -> None:
        marker.version, marker.fleet, marker.deleted = 18, 700, True

    async def never(*_: Any, **__: Any) -> None:
        raise errors.timed_out("no live state of that version ever comes")

    monkeypatch.setattr(world.clock, "wait_deleted", deleted)
    monkeypatch.setattr(world.context.reads, "show", never)
    answer = await delete.delete(world.context, call("DELETE", ONE), PODS)
    assert isinstance(answer.body, bytes) and answer.status == 200
    assert msgspec.json.decode(answer.body)["metadata"]["resourceVersion"] == "700"


@pytest.mark.parametrize(("query", "body"), [("?dryRun=All", None), ("", {"dryRun": ["All"]})])
async def test_dry_run_waits_for_nothing(world: World, query: str, body: Any) -> None:
    """kubectl asks for it in the DeleteOptions."""
    world.east.answers[("DELETE", ONE)] = pod(uid="u1", resourceVersion="17")
    answer = await delete.delete(world.context, call("DELETE", ONE + query, body), PODS)
    assert world.clock.deletions == []
    assert isinstance(answer.body, bytes)
    shown = msgspec.json.decode(answer.body)["metadata"]
    assert shown["resourceVersion"] == "640" and shown["annotations"]["reclock.dev/cluster"] == "east"


async def test_dry_run_in_the_query_beside_a_body_is_none(world: World) -> None:
    """kube-apiserver really deletes then: the answer must wait for it."""
    world.east.answers[("DELETE", ONE)] = {"kind": "Status", "details": {"uid": "u1"}}
    await delete.delete(world.context, call("DELETE", ONE + "?dryRun=All", {"gracePeriodSeconds": 0}), PODS)
    assert world.clock.deletions == [("east", "u1")]


async def test_version_precondition_becomes_the_members_with_the_uid(world: World) -> None:
    world.east.answers[("DELETE", ONE)] = {"kind": "Status", "details": {"uid": "u1"}}
    body = {"preconditions": {"resourceVersion": "640"}, "gracePeriodSeconds": 0}
    await delete.delete(world.context, call("DELETE", ONE, body), PODS)
    assert world.east.sent("DELETE") == [
        {"preconditions": {"resourceVersion": "17", "uid": "u1"}, "gracePeriodSeconds": 0}
    ]
    stale = {"preconditions": {"resourceVersion": "17"}}
    error = await refused(lambda: delete.delete(world.context, call("DELETE", ONE, stale), PODS))
    assert error.code == 409 and len(world.east.sent("DELETE")) == 1


async def test_object_that_nobody_has_is_asked_for_then_404(world: World) -> None:
    path = ALL + "/absent"
    error = await refused(lambda: delete.delete(world.context, call("DELETE", path), PODS))
    assert (error.code, error.message) == (404, 'pods "absent" not found')
    assert [one.asked[0][:2] for one in (world.east, world.west)] == [("GET", path)] * 2


async def test_just_created_object_is_found_by_asking(world: World) -> None:
    path = ALL + "/young"
    world.west.answers[("GET", path)] = pod("young", uid="u9", resourceVersion="33")
    world.west.answers[("DELETE", path)] = {"kind": "Status", "details": {"uid": "u9"}}
    waited = world.clock.wait_version

    async def arrives(*args: Any, timeout: float = 5) -> Any:
        world.clock.put("west", "young", "u9", version=33)
        return await waited(*args)

    world.clock.wait_version = arrives
    await delete.delete(world.context, call("DELETE", path), PODS)
    assert world.clock.versions == [33] and world.clock.deletions == [("west", "u9")]


async def run_collection(world: World, query: str = "", body: Any = None) -> Any:
    return await collection.delete_collection(world.context, call("DELETE", ALL + query, body), PODS)


async def test_collection_goes_to_every_member_and_waits_for_all(world: World) -> None:
    world.clock.put("west", "db", "u2")
    world.east.answers[("DELETE", ALL)] = listed(pod(uid="u1", resourceVersion="17"))
    world.west.answers[("DELETE", ALL)] = listed(pod("db", uid="u2", resourceVersion="17"))
    answer = await run_collection(world, "?labelSelector=app%3Dweb")
    shown = msgspec.json.decode(answer.body)
    assert shown["kind"] == "PodList" and shown["metadata"]["resourceVersion"] == "1000"
    assert [item["metadata"]["resourceVersion"] for item in shown["items"]] == ["640", "640"]
    assert world.clock.deletions == [("east", "u1"), ("west", "u2")]
    assert world.east.queries == [[("labelSelector", "app=web")]]


async def test_collection_keeps_what_is_hidden(world: World) -> None:
    """West's `web` is older in nobody's eyes: whoever asks has seen east's only."""
    world.clock.put("west", "web", "hidden")
    world.clock.put("west", "db", "u2")
    world.east.answers[("DELETE", ALL)] = listed(pod(uid="u1", resourceVersion="17"))
    world.west.answers[("GET", ALL)] = listed(
        pod(uid="hidden", resourceVersion="17"), pod("db", uid="u2", resourceVersion="17")
    )
    world.west.answers[("DELETE", ALL + "/db")] = {"kind": "Status"}
    await run_collection(world, "?labelSelector=a&propagationPolicy=Orphan&gracePeriodSeconds=0")
    # In the body: kube-apiserver does not look at the query where there is one.
    options = {"gracePeriodSeconds": 0, "propagationPolicy": "Orphan", "preconditions": {"uid": "u2"}}
    assert world.west.sent("DELETE") == [options]
    assert world.west.queries == [[("labelSelector", "a")], []]
    assert sorted(world.clock.deletions) == [("east", "u1"), ("west", "u2")]


async def test_what_went_meanwhile_is_no_failure(world: World) -> None:
    world.clock.put("west", "web", "hidden")
    world.east.answers[("DELETE", ALL)] = listed()
    world.west.answers[("GET", ALL)] = listed(pod("db", uid="u2"), pod("new", uid="u3"))
    world.west.answers[("DELETE", ALL + "/new")] = errors.conflict("pods", "new", "uid")
    answer = await run_collection(world)
    assert msgspec.json.decode(answer.body)["items"] == [] and world.clock.deletions == []


async def test_collection_with_a_member_away_fails_after_the_others_are_done(world: World) -> None:
    world.clock.members["east"].state = "Unreachable"
    world.east.answers[("DELETE", ALL)] = MemberUnreachable("cluster east: no answer in time")
    world.west.answers[("DELETE", ALL)] = listed(pod("db", uid="u2", resourceVersion="17"))
    error = await refused(lambda: run_collection(world))
    assert error.code == 503 and "east" in error.message
    assert world.clock.deletions == [("west", "u2")]


@pytest.mark.parametrize("query", ["?limit=1", "?continue=abc", "?resourceVersion=5&resourceVersionMatch=Exact", "?limit=x"])
async def test_a_part_of_a_collection_does_not_delete_all_of_it(world: World, query: str) -> None:
    """kube-apiserver deletes `limit` objects and no more."""
    world.east.answers[("DELETE", ALL)] = world.west.answers[("DELETE", ALL)] = listed()
    assert (await refused(lambda: run_collection(world, query))).code == 400
    assert not world.east.asked and not world.west.asked
    assert (await run_collection(world, "?limit=0")).status == 200


async def test_every_members_warnings_reach_who_deletes_a_collection(world: World) -> None:
    world.east.answers[("DELETE", ALL)] = answer(listed(), 200, '299 - "old"', '299 - "both"')
    world.west.answers[("DELETE", ALL)] = answer(listed(), 200, '299 - "both"', '299 - "new"')
    found = await run_collection(world)
    assert found.headers.getall("Warning") == ['299 - "old"', '299 - "both"', '299 - "new"']


async def test_collection_that_was_deleted_is_not_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """client-go sends again what is answered 503 with seconds: that would delete what was made since."""
    world.east.answers[("DELETE", ALL)] = world.west.answers[("DELETE", ALL)] = listed()

    async def away(**_: Any) -> Any:
        raise errors.unavailable("the store of fleet versions does not answer")

    monkeypatch.setattr(world.clock, "snapshot", away)
    error = await refused(lambda: run_collection(world))
    assert (error.code, error.retry_after) == (504, None)


async def test_collection_dry_run_and_preconditions(world: World) -> None:
    for one in (world.east, world.west):
        one.answers[("DELETE", ALL)] = listed()
    world.east.answers[("DELETE", ALL)] = listed(pod(uid="u1", resourceVersion="17"))
    await run_collection(world, body={"dryRun": ["All"]})
    assert world.clock.deletions == []
    assert (await refused(lambda: run_collection(world, body={"preconditions": {"uid": "u"}}))).code == 400


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("involvedObject.uid=host,reason=X", "involvedObject.uid=member,reason=X"),
        ("regarding.uid==host", "regarding.uid==member"),
        ("involvedObject.uid!=host", "involvedObject.uid!=member"),
        ("involvedObject.uid=other", "involvedObject.uid=other"),
        ("involvedObject.name=host", "involvedObject.name=host"),
        ("involvedObject.uid=", "involvedObject.uid="),
    ],
)
def test_uids_in_field_selectors(selector: str, expected: str) -> None:
    assert collection.translate_uids(selector, {"host": "member"}) == expected


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete", "deletecollection"])
async def test_nothing_is_sent_while_etcd_takes_no_writes(world: World, verb: str) -> None:
    world.clock.refuses = "pods cannot be written now: etcd does not answer"
    body = {"metadata": {"name": "web", "namespace": "ns"}}
    calls: dict[str, tuple[str, str, Any]] = {
        "create": ("POST", ALL, body), "update": ("PUT", ONE, body), "patch": ("PATCH", ONE, body),
        "delete": ("DELETE", ONE, None), "deletecollection": ("DELETE", ALL, None),
    }  # fmt: skip
    method, path, sent = calls[verb]
    made = call(method, path, sent, content_type="application/merge-patch+json") if verb == "patch" else call(method, path, sent)
    error = await refused(lambda: getattr(Writes(world.context), verb)(made, PODS))
    assert (error.code, error.retry_after) == (503, 2)
    assert not world.east.asked and not world.west.asked
