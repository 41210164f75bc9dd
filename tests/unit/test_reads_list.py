"""Lists over several members: one version, key order, pages, members that fail."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web
from reads_fake import Fleet, fleet_of, pod, status

from services.aggregator.clock.view import Snapshot
from services.aggregator.reads.tokens import Token, TokenCodec, scope_of, short

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with fleet_of("east", "west") as fleet:
        yield fleet


def names(body: dict) -> list[str]:
    return [f"{o['metadata']['namespace']}/{o['metadata']['name']}" for o in body["items"]]


async def test_list_is_merged_in_key_order_with_fleet_versions(fleet: Fleet) -> None:
    for i in range(6):
        fleet.write("east" if i % 2 else "west", pod(f"p{i}"))
    fleet.write("west", pod("x", ns="a-b"))
    fleet.write("east", pod("x", ns="a"))
    code, body = await fleet.get("/api/v1/pods")
    assert code == 200
    # kube-apiserver's own order: by namespace/name as one text, so that a-b comes before a.
    assert names(body) == ["a-b/x", "a/x", *(f"default/p{i}" for i in range(6))]
    assert body["kind"] == "PodList" and body["apiVersion"] == "v1"
    assert body["metadata"] == {"resourceVersion": str(fleet.clock.head)}
    for obj in body["items"]:
        meta = obj["metadata"]
        cluster = meta["annotations"]["reclock.dev/cluster"]
        marker = fleet.clock.marker(cluster, meta["namespace"], meta["name"])
        assert meta["resourceVersion"] == str(marker.fleet)
        assert obj["spec"] == {"nodeName": "n0"}


async def test_fault_05_members_are_asked_exact_at_their_position(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    await fleet.get("/api/v1/namespaces/default/pods?labelSelector=app%3Dweb")
    for name in ("east", "west"):
        query = fleet.members[name].requests[-1].query
        assert query["resourceVersion"] == str(fleet.clock.state.positions[name].read)
        assert query["resourceVersionMatch"] == "Exact"
        assert query["labelSelector"] == "app=web"
    assert fleet.clock.barriers == 1


async def test_fault_06_version_zero_takes_no_barrier_and_ignores_limit(fleet: Fleet) -> None:
    for i in range(5):
        fleet.write("east", pod(f"p{i}"))
    code, body = await fleet.get("/api/v1/pods?resourceVersion=0&limit=2")
    assert code == 200 and len(body["items"]) == 5 and fleet.clock.barriers == 0


async def test_list_shows_nothing_newer_than_its_version(fleet: Fleet) -> None:
    fleet.write("east", pod("a", app="1"))
    fleet.write("east", pod("a", app="2"), log=False)
    fleet.write("east", pod("b"), log=False)
    code, body = await fleet.get("/api/v1/pods")
    assert code == 200 and names(body) == ["default/a"]
    assert body["items"][0]["metadata"]["labels"] == {"app": "1"}


async def test_body_without_marker_begins_the_list_anew(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.members["east"].version = 500  # the member says 101 and shows what the log never had
    wrong = pod("b")
    wrong["metadata"]["resourceVersion"] = "101"
    fleet.members["east"].history[101]["default/b"] = wrong
    task = asyncio.create_task(fleet.get("/api/v1/pods"))
    await asyncio.sleep(0.1)
    assert not task.done()
    del fleet.members["east"].history[101]["default/b"]
    code, body = await task
    assert code == 200 and names(body) == ["default/a"]
    assert len(fleet.members["east"].requests) > 1


async def test_list_that_never_gets_consistent_is_503(fleet: Fleet) -> None:
    obj = fleet.write("east", pod("a"))
    fleet.members["east"].history[int(obj["metadata"]["resourceVersion"])]["default/a"]["metadata"]["uid"] = "other"
    code, body = await fleet.get("/api/v1/pods")
    assert code == 503 and body["reason"] == "ServiceUnavailable"


async def test_fault_17_clash_shows_the_older_only_also_with_selectors(fleet: Fleet) -> None:
    fleet.write("east", pod("same", uid="old", app="east"))
    fleet.write("west", pod("same", uid="new", app="west"))
    code, body = await fleet.get("/api/v1/pods")
    assert [o["metadata"]["uid"] for o in body["items"]] == ["old"]
    code, body = await fleet.get("/api/v1/pods?labelSelector=app%3Dwest")
    assert code == 200 and body["items"] == []


async def test_clash_of_the_past_is_judged_at_the_lists_version(fleet: Fleet) -> None:
    first = fleet.write("east", pod("same", uid="old", app="east"))
    second = fleet.write("west", pod("same", uid="new", app="west"))
    version = fleet.clock.head
    gone = fleet.members["east"].write(first, delete=True)
    from _fastpath.marker import Marker

    marker = Marker("east", "east-uid/0", "default", "same", "old", int(gone["metadata"]["resourceVersion"]), deleted=True)
    fleet.clock.show_next(marker, second, "west")
    code, body = await fleet.get(f"/api/v1/pods?resourceVersion={version}&resourceVersionMatch=Exact&labelSelector=app%3Dwest")
    assert code == 200 and body["items"] == []
    code, body = await fleet.get("/api/v1/pods")
    assert [o["metadata"]["uid"] for o in body["items"]] == ["new"]


async def test_unreachable_member_is_left_out_with_gap_and_warning(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.write("west", pod("b"))
    fleet.members["west"].fail = lambda: status(503, "ServiceUnavailable", "shutting down")
    before = fleet.clock.head
    code, body = await fleet.get("/api/v1/pods")
    assert code == 200 and names(body) == ["default/a"]
    assert fleet.clock.gaps == [("west", before)]
    assert int(body["metadata"]["resourceVersion"]) <= before
    assert any("west" in text for text in fleet.calls[-1].warnings)


async def test_left_out_by_the_clock_has_a_gap_too(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.clock.left_out = ["west"]
    code, _body = await fleet.get("/api/v1/pods")
    assert code == 200 and fleet.clock.gaps and fleet.clock.gaps[0][0] == "west"


async def test_unreachable_fail_is_503(fleet: Fleet) -> None:
    from dataclasses import replace

    fleet.aggregated = replace(fleet.aggregated, unreachable="Fail")
    fleet.members["west"].fail = lambda: status(503, "ServiceUnavailable", "away")
    code, body = await fleet.get("/api/v1/pods")
    assert code == 503 and "west" in body["message"] and not fleet.clock.gaps


async def test_member_without_the_type_counts_as_empty(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.members["west"].fail = lambda: status(404, "NotFound")
    code, body = await fleet.get("/api/v1/pods")
    assert code == 200 and names(body) == ["default/a"] and not fleet.clock.gaps


async def test_a_404_of_a_member_that_has_objects_loses_none_of_them(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.write("west", pod("b"))
    fleet.members["west"].fail = lambda: status(404, "NotFound")  # a proxy's, or the type has just gone
    code, body = await fleet.get("/api/v1/pods")
    assert code == 200 and names(body) == ["default/a"] and [name for name, _ in fleet.clock.gaps] == ["west"]


async def test_compacted_member_lists_anew_first(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.members["west"].fail = lambda: status(410, "Expired")
    fleet.clock.on_refresh = lambda: setattr(fleet.members["west"], "fail", None)
    code, _body = await fleet.get("/api/v1/pods")
    assert code == 200 and fleet.clock.refreshed == ["west"] and not fleet.clock.gaps


async def test_fault_04_one_slow_member_is_waited_for_beside_the_others(fleet: Fleet) -> None:
    """No member answers before all are asked: asked one after the other, the first would never."""
    all_asked = asyncio.Barrier(len(fleet.members))
    for name, member in fleet.members.items():
        fleet.write(name, pod(name))
        real = member.serve_many

        async def serve(request: web.Request, real: Any = real) -> web.StreamResponse:
            await all_asked.wait()
            return await real(request)

        member.serve_many = serve
    code, body = await fleet.get("/api/v1/pods")
    assert code == 200 and names(body) == ["default/east", "default/west"] and not fleet.clock.gaps


async def test_a_member_that_hangs_is_left_out(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.aggregator.reads import walk as module

    monkeypatch.setattr(module, "OPEN_TIMEOUT", 0.2)
    fleet.write("east", pod("a"))
    fleet.members["west"].delay = 30
    code, body = await fleet.get("/api/v1/pods")
    assert code == 200 and names(body) == ["default/a"] and fleet.clock.gaps[0][0] == "west"


async def walk(fleet: Fleet, query: str, *, kept: bool = True) -> tuple[list[str], list[dict]]:
    found: list[str] = []
    pages: list[dict] = []
    token = ""
    while True:
        code, body = await fleet.get(f"/api/v1/pods?{query}" + (f"&continue={token}" if token else ""))
        assert code == 200, body
        pages.append(body)
        found += names(body)
        token = body["metadata"].get("continue", "")
        if not token:
            return found, pages
        if not kept:
            await fleet.forget()


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("kept", [True, False])
async def test_pages_hold_every_object_once(fleet: Fleet, limit: int, kept: bool) -> None:
    for i in range(23):
        fleet.write("west" if i % 5 == 0 else "east", pod(f"p{i:02d}", ns=f"ns{i % 3}"))
    found, pages = await walk(fleet, f"limit={limit}", kept=kept)
    assert found == sorted(found) and len(found) == 23 == len(set(found))
    assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1
    left = 23
    for page in pages[:-1]:
        assert len(page["items"]) == limit
        left -= limit
        assert page["metadata"]["remainingItemCount"] == left


async def test_pages_inside_of_one_namespace(fleet: Fleet) -> None:
    for i in range(9):
        fleet.write("west" if i % 2 else "east", pod(f"p{i}", ns="one"))
        fleet.write("west" if i % 2 else "east", pod(f"p{i}", ns="two"))
    _code, body = await fleet.get("/api/v1/namespaces/one/pods?limit=5")
    _code, rest = await fleet.get(f"/api/v1/namespaces/one/pods?limit=5&continue={body['metadata']['continue']}")
    assert names(body) + names(rest) == [f"one/p{i}" for i in range(9)]


async def test_fault_22_pages_are_of_one_version_whatever_happens_between(fleet: Fleet) -> None:
    for i in range(6):
        fleet.write("east", pod(f"p{i}"))
    code, body = await fleet.get("/api/v1/pods?limit=3")
    fleet.write("east", pod("p4"), delete=True)
    fleet.write("west", pod("p9"))
    code, rest = await fleet.get(f"/api/v1/pods?limit=9&continue={body['metadata']['continue']}")
    assert code == 200 and names(rest) == ["default/p3", "default/p4", "default/p5"]
    assert rest["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]


async def test_a_page_ends_early_when_it_gets_too_big(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    from services.aggregator.reads import lister

    monkeypatch.setattr(lister, "PAGE_BYTES", 200_000)
    for i in range(1000):
        big = pod(f"p{i:04d}")
        big["spec"]["filler"] = "x" * 1000
        fleet.write("east" if i % 3 else "west", big)
    found, pages = await walk(fleet, "limit=900")
    assert found == [f"default/p{i:04d}" for i in range(1000)]
    assert len(pages) > 3 and all(len(page["items"]) < 400 for page in pages)


async def test_no_remaining_count_with_a_selector(fleet: Fleet) -> None:
    for i in range(6):
        fleet.write("east", pod(f"p{i}", app="web"))
    _code, body = await fleet.get("/api/v1/pods?limit=2&labelSelector=app%3Dweb")
    assert body["metadata"]["continue"] and "remainingItemCount" not in body["metadata"]


async def test_bad_and_foreign_tokens_are_400(fleet: Fleet) -> None:
    for i in range(4):
        fleet.write("east", pod(f"p{i}"))
    code, body = await fleet.get("/api/v1/pods?limit=2")
    token = body["metadata"]["continue"]
    for bad in ("garbage", token[:-2] + ("AA" if not token.endswith("AA") else "BB"), "%C3%A4"):
        code, body = await fleet.get(f"/api/v1/pods?limit=2&continue={bad}")
        assert code == 400 and body["reason"] == "BadRequest", bad
    for at in range(0, len(token), 7):  # altered anywhere
        bad = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        assert (await fleet.get(f"/api/v1/pods?limit=2&continue={bad}"))[0] == 400, at
    for query in ("labelSelector=a", "fieldSelector=metadata.name%3Dp3"):  # of another request
        assert (await fleet.get(f"/api/v1/pods?limit=2&{query}&continue={token}"))[0] == 400
    assert (await fleet.get(f"/api/v1/namespaces/default/pods?limit=2&continue={token}"))[0] == 400
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    walk = msgspec.msgpack.decode(raw[16:], type=Token)
    for fleet_id, secret in (("another", b"secret"), ("fleet", b"another")):
        foreign = TokenCodec(fleet_id, secret).encode(walk)
        assert (await fleet.get(f"/api/v1/pods?limit=2&continue={foreign}"))[0] == 400
    assert (await fleet.get(f"/api/v1/pods?limit=2&continue={TokenCodec('fleet', b'secret').encode(walk)}"))[0] == 200
    code, body = await fleet.get(f"/api/v1/pods?limit=2&resourceVersion=5&continue={token}")
    assert code == 400


async def test_a_member_that_left_expires_the_walk_with_a_fresh_token(fleet: Fleet) -> None:
    for i in range(6):
        fleet.write("east", pod(f"p{i}"))
    code, body = await fleet.get("/api/v1/pods?limit=3")
    fleet.clock.members.pop("west")
    code, gone = await fleet.get(f"/api/v1/pods?limit=3&continue={body['metadata']['continue']}")
    assert code == 410 and gone["reason"] == "Expired" and "inconsistent" in gone["message"]
    code, rest = await fleet.get(f"/api/v1/pods?limit=9&continue={gone['metadata']['continue']}")
    assert code == 200 and names(rest) == ["default/p3", "default/p4", "default/p5"]


async def test_a_member_that_joins_between_pages_is_not_in_the_walk(fleet: Fleet) -> None:
    for i in range(6):
        fleet.write("east", pod(f"p{i}"))
    late = fleet.clock.members.pop("west")
    _, body = await fleet.get("/api/v1/pods?limit=2")
    fleet.clock.members["west"] = late
    for name in ("a", "p2x", "z"):
        fleet.write("west", pod(name))
    found = names(body)
    while token := body["metadata"].get("continue"):
        code, body = await fleet.get(f"/api/v1/pods?limit=2&continue={token}")
        assert code == 200
        found += names(body)
    assert found == [f"default/p{i}" for i in range(6)]
    assert len(names((await fleet.get("/api/v1/pods?limit=20"))[1])) == 9


async def test_an_old_member_that_compacts_between_pages_expires_the_walk_with_a_fresh_token(fleet: Fleet) -> None:
    """Before 1.34 pages and exact versions come from etcd, which forgets after five minutes."""
    for i in range(6):
        fleet.write(("east", "west")[i % 2], pod(f"p{i}"))
    _, body = await fleet.get("/api/v1/pods?limit=3")
    await fleet.forget()
    fleet.members["west"].fail = lambda: status(410, "Expired")
    code, gone = await fleet.get(f"/api/v1/pods?limit=3&continue={body['metadata']['continue']}")
    assert code == 410 and gone["reason"] == "Expired" and "inconsistent" in gone["message"]
    # The newest state: there the member's feed lists anew, and is asked at a version that it has.
    fleet.clock.on_refresh = lambda: setattr(fleet.members["west"], "fail", None)
    code, rest = await fleet.get(f"/api/v1/pods?limit=9&continue={gone['metadata']['continue']}")
    assert code == 200 and names(rest) == ["default/p3", "default/p4", "default/p5"]
    assert fleet.clock.refreshed == ["west"]


async def test_another_incarnation_expires_the_walk(fleet: Fleet) -> None:
    from services.aggregator.clock.position import Position

    for i in range(6):
        fleet.write("east", pod(f"p{i}"))
    code, body = await fleet.get("/api/v1/pods?limit=3")
    fleet.clock.members["east"].position = Position("east-uid/1", 300, 299)
    code, _gone = await fleet.get(f"/api/v1/pods?limit=3&continue={body['metadata']['continue']}")
    assert code == 410


async def test_version_of_the_future_and_of_the_past(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    code, body = await fleet.get(f"/api/v1/pods?resourceVersion={fleet.clock.head + 1000}")
    assert code == 504 and body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    code, body = await fleet.get("/api/v1/pods?resourceVersion=5&resourceVersionMatch=Exact")
    assert code == 410 and body["reason"] == "Expired"
    assert body["message"] == "The resourceVersion for the provided list is too old."


async def test_exact_version_of_the_past(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    version = fleet.clock.head
    fleet.write("west", pod("b"))
    code, body = await fleet.get(f"/api/v1/pods?resourceVersion={version}&resourceVersionMatch=Exact")
    assert code == 200 and names(body) == ["default/a"] and body["metadata"]["resourceVersion"] == str(version)


async def test_fault_11_table_has_one_set_of_columns_and_the_cluster_behind_the_name(fleet: Fleet) -> None:
    fleet.members["west"].columns = ["Ready", "Name", "Extra"]
    fleet.write("east", pod("a"))
    fleet.write("west", pod("b"))
    _code, body = await fleet.get("/api/v1/pods", Accept=TABLE)
    assert body["kind"] == "Table" and body["metadata"]["resourceVersion"] == str(fleet.clock.head)
    assert [c["name"] for c in body["columnDefinitions"]] == ["Name", "Cluster", "Ready", "Extra"]
    assert [row["cells"] for row in body["rows"]] == [["a", "east", "1/1", None], ["b", "west", "1/1", "?"]]
    for row, cluster in zip(body["rows"], ("east", "west"), strict=True):
        meta = row["object"]["metadata"]
        assert row["object"]["kind"] == "PartialObjectMetadata"
        assert meta["resourceVersion"] == str(fleet.clock.marker(cluster, "default", meta["name"]).fleet)


@pytest.mark.parametrize("include", ["None", "Metadata", "Object"])
async def test_table_objects_as_asked(fleet: Fleet, include: str) -> None:
    fleet.write("east", pod("a"))
    _code, body = await fleet.get(f"/api/v1/pods?includeObject={include}", Accept=TABLE)
    obj = body["rows"][0]["object"]
    assert (obj is None) == (include == "None")
    assert obj is None or ("spec" in obj) == (include == "Object")


async def test_partial_list(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    _code, body = await fleet.get("/api/v1/pods", Accept=PARTIAL)
    assert body["kind"] == "PartialObjectMetadataList" and body["apiVersion"] == "meta.k8s.io/v1"
    assert body["items"][0]["kind"] == "PartialObjectMetadata" and "spec" not in body["items"][0]


async def test_pretty_is_the_same_value_indented(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.write("west", pod("b"))
    _code, plain = await fleet.get("/api/v1/pods")
    async with fleet.http.get("/api/v1/pods?pretty=true") as answer:
        text = await answer.text()
    assert json.loads(text) == plain and '\n  "items": [\n    {\n      "metadata"' in text
    async with fleet.http.get("/api/v1/namespaces/none/pods?pretty=1") as answer:
        assert json.loads(await answer.text())["items"] == []


async def test_gzip_only_for_big_answers_that_accept_it(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    async with fleet.http.get("/api/v1/pods", headers={"Accept-Encoding": "gzip"}) as answer:
        assert "Content-Encoding" not in answer.headers
    for i in range(400):
        big = pod(f"p{i:04d}")
        big["spec"]["filler"] = "x" * 500 + str(i)
        fleet.write("west", big)
    async with fleet.http.get("/api/v1/pods", headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["Content-Encoding"] == "gzip" and len((await answer.json())["items"]) == 401
    async with fleet.http.get("/api/v1/pods", headers={"Accept-Encoding": "identity"}) as answer:
        assert "Content-Encoding" not in answer.headers and len((await answer.json())["items"]) == 401


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_big_list_streams_and_is_whole(fleet: Fleet, encoding: str) -> None:
    for i in range(3000):
        big = pod(f"p{i:04d}")
        big["spec"]["filler"] = "x" * 1000
        fleet.members["east" if i < 1500 else "west"].write(big)
    for name, member in fleet.members.items():
        for obj in list(member.objects.values()):
            fleet.clock.log(name, obj)
    async with fleet.http.get("/api/v1/pods", headers={"Accept-Encoding": encoding}) as answer:
        assert answer.headers.get("Transfer-Encoding") == "chunked"
        assert names(await answer.json()) == [f"default/p{i:04d}" for i in range(3000)]


async def test_owners_are_mapped_also_when_the_member_must_be_asked(fleet: Fleet) -> None:
    owned = pod("a")
    owned["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "m1"}]
    fleet.owners.slow["m1"] = "h1"
    fleet.write("east", owned)
    for _ in range(2):
        _code, body = await fleet.get("/api/v1/pods")
        assert body["items"][0]["metadata"]["ownerReferences"][0]["uid"] == "h1"
    assert fleet.owners.resolved == 1


async def test_member_authorization_impersonates_and_leaves_out_what_is_denied(fleet: Fleet) -> None:
    from dataclasses import replace

    fleet.aggregated = replace(fleet.aggregated, authorization="Member")
    fleet.write("east", pod("a"))
    fleet.write("west", pod("b"))
    fleet.members["west"].denied.add("jane")
    code, body = await fleet.get("/api/v1/pods")
    assert code == 200 and names(body) == ["default/a"]
    assert fleet.members["east"].requests[-1].headers["Impersonate-User"] == "jane"
    assert any("west" in text for text in fleet.calls[-1].warnings) and not fleet.clock.gaps


@pytest.mark.parametrize(("query", "code", "text"), [
    ("resourceVersion=garbage", 400, "invalid resource version"),
    ("limit=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
    ("labelSelector=a%20b", 400, "unable to parse requirement"),
    ("fieldSelector=spec.foo%3Dx", 400, "field label not supported: spec.foo"),
    ("fieldSelector=nothing", 400, "can't understand 'nothing'"),
    ("resourceVersionMatch=Exact", 422, "resourceVersionMatch is forbidden unless resourceVersion is provided"),
    ("resourceVersion=5&resourceVersionMatch=Nearly", 422, 'Unsupported value: "Nearly"'),
    ("resourceVersion=0&resourceVersionMatch=Exact", 422, 'is forbidden for resourceVersion "0"'),
    ("sendInitialEvents=true", 422, "sendInitialEvents is forbidden for list"),
])  # fmt: skip
async def test_bad_queries(fleet: Fleet, query: str, code: int, text: str) -> None:
    got, body = await fleet.get(f"/api/v1/pods?{query}")
    assert got == code and text in body["message"], body
    assert body["reason"] == ("Invalid" if code == 422 else "BadRequest")


async def test_unknown_forms_are_406(fleet: Fleet) -> None:
    for accept in ("text/html", "application/json;as=Other;v=v1;g=meta.k8s.io"):
        code, body = await fleet.get("/api/v1/pods", Accept=accept)
        assert code == 406 and body["reason"] == "NotAcceptable", accept


async def test_a_resource_in_two_groups_is_asked_for_as_the_client_did(fleet: Fleet) -> None:
    from services.aggregator.reads.service import _served
    from services.aggregator.types import Aggregated

    events = Aggregated("events", "", "v1", "events", "Event", namespaced=True)
    await fleet.get("/apis/events.k8s.io/v1/namespaces/default/events")
    call = fleet.calls[-1]
    assert _served(call, events).at().path("default") == "/apis/events.k8s.io/v1/namespaces/default/events"
    await fleet.get("/api/v1/pods")
    assert _served(fleet.calls[-1], events) is events  # another resource's call


async def test_a_page_that_follows_one_of_a_replica_ahead_waits_for_the_log(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that its objects have no markers here yet, and the client would be told to list anew."""
    fleet.write("east", pod("a"))
    fleet.write("west", pod("b"))
    late = fleet.write("east", pod("c"), log=False)
    clock, wanted = fleet.clock, fleet.clock.state.fleet(fleet.clock.revision + 1)
    positions = {"east": int(late["metadata"]["resourceVersion"]), "west": clock.state.positions["west"].read}
    walk = Token(scope_of("pods", "", "", ""), "default/a", wanted, {
        cluster: (short(f"{cluster}-uid/0"), read) for cluster, read in positions.items()
    })  # fmt: skip
    real = clock.snapshot

    async def behind(*, linearizable: bool = True, minimum: int = 0, timeout: float = 10) -> Snapshot:
        if minimum == wanted:
            clock.log("east", late)
        return await real(linearizable=linearizable, minimum=minimum, timeout=timeout)

    monkeypatch.setattr(clock, "snapshot", behind)
    code, body = await fleet.get(f"/api/v1/pods?limit=5&continue={TokenCodec('fleet', b'secret').encode(walk)}")
    assert (code, names(body)) == (200, ["default/b", "default/c"])
