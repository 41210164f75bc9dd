"""Reads in Kubernetes' protobuf: the same objects, numbers and annotations as in JSON; every form, error and fall-back."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import proto_model as model
import pytest
from reads_fake import BASE, PODS, PROTOBUF, Fleet, pod

from _fastpath import proto
from services.aggregator.protobuf import to_json
from services.aggregator.reads import respond, spool
from services.aggregator.reads.codec import type_meta
from services.common.kube import status_pb

PARTIAL = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
PARTIALS = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
OWNED = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs-uid", "controller": True}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet("east", "west")
    await fleet.start()
    yield fleet
    await fleet.stop()


def pods_in(answer: bytes) -> tuple[proto.ListScanner, list[dict[str, Any]]]:
    scanner = proto.ListScanner()
    items = scanner.feed(answer)
    scanner.finish()
    head = type_meta("v1", "Pod")
    return scanner, [json.loads(to_json(proto.envelope(head, item))) for item in items]


async def raw(fleet: Fleet, path: str, accept: str = PROTOBUF, **headers: str) -> tuple[int, str, bytes]:
    async with fleet.http.get(path, headers={"Accept": accept, **headers}) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.read()


@asynccontextmanager
async def frames(fleet: Fleet, query: str, accept: str = PROTOBUF) -> AsyncIterator[Any]:
    async with fleet.http.get(f"/api/v1/pods?watch=true&{query}", headers={"Accept": accept}) as answer:
        assert answer.status == 200, await answer.read()
        assert answer.headers["Content-Type"] == f"{PROTOBUF};stream=watch"

        async def following() -> tuple[str, Any]:
            (size,) = struct.unpack(">I", await asyncio.wait_for(answer.content.readexactly(4), 5))
            frame = await asyncio.wait_for(answer.content.readexactly(size), 5)
            type_, meta = proto.scan_frame(frame)
            if type_ == "ERROR":
                return type_, status_pb.decode(frame[meta.start : meta.end])
            return type_, meta

        yield following


async def test_fault_10_get_is_the_json_answer_in_protobuf(fleet: Fleet) -> None:
    fleet.owners.known = {"rs-uid": "host-rs"}
    obj = pod("a", app="web")
    obj["metadata"]["ownerReferences"] = [OWNED]
    fleet.write("east", obj)
    code, kind, body = await raw(fleet, "/api/v1/namespaces/default/pods/a")
    assert (code, kind) == (200, PROTOBUF)
    shown = json.loads(to_json(body))
    _, plain = await fleet.get("/api/v1/namespaces/default/pods/a")
    assert shown == plain
    assert shown["metadata"]["annotations"] == {"reclock.dev/cluster": "east"}
    assert shown["metadata"]["ownerReferences"][0]["uid"] == "host-rs"
    code, _, body = await raw(fleet, "/api/v1/namespaces/default/pods/a", PROTOBUF + PARTIAL)
    assert proto.unwrap(body)[:2] == ("meta.k8s.io/v1", "PartialObjectMetadata")
    assert proto.scan_answer(body).version == plain["metadata"]["resourceVersion"]


async def test_lists_are_merged_in_key_order(fleet: Fleet) -> None:
    for cluster, name in (("east", "c"), ("west", "b"), ("east", "a"), ("west", "d")):
        fleet.write(cluster, pod(name, app="web"))
    code, kind, body = await raw(fleet, "/api/v1/pods", f"{PROTOBUF},application/json")
    scanner, items = pods_in(body)
    _, plain = await fleet.get("/api/v1/pods")
    assert (code, kind, scanner.kind, scanner.api_version) == (200, PROTOBUF, "PodList", "v1")
    assert [{k: v for k, v in item.items() if k not in ("kind", "apiVersion")} for item in items] == plain["items"]
    assert scanner.list_version == plain["metadata"]["resourceVersion"]
    code, _, body = await raw(fleet, "/api/v1/pods", PROTOBUF + PARTIALS)
    scanner, items = pods_in(body)
    assert scanner.kind == "PartialObjectMetadataList" and len(items) == 4
    assert [item["metadata"] for item in items] == [item["metadata"] for item in plain["items"]]


async def test_pages(fleet: Fleet) -> None:
    for i in range(7):
        fleet.write(("east", "west")[i % 2], pod(f"p{i}"))
    names, token, left = [], "", []
    for _ in range(4):
        _, _, body = await raw(fleet, f"/api/v1/pods?limit=2&continue={token}")
        scanner, items = pods_in(body)
        names += [item["metadata"]["name"] for item in items]
        token = scanner.continue_token
        left.append(scanner.remaining)
    assert names == [f"p{i}" for i in range(7)] and token == ""
    assert left == [5, 3, 1, None]


async def test_an_empty_list(fleet: Fleet) -> None:
    scanner, items = pods_in((await raw(fleet, "/api/v1/pods"))[2])
    assert (items, scanner.kind) == ([], "PodList")


async def test_a_list_beyond_what_is_kept_plain_is_packed(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "PLAIN", 2000)
    monkeypatch.setattr(spool, "BLOCK", 1000)
    for i in range(300):
        fleet.write(("east", "west")[i % 2], pod(f"p{i:03}", app="x" * 20))
    _, items = pods_in((await raw(fleet, "/api/v1/pods"))[2])
    assert [item["metadata"]["name"] for item in items] == [f"p{i:03}" for i in range(300)]
    _, items = pods_in((await raw(fleet, "/api/v1/pods", **{"Accept-Encoding": "gzip"}))[2])
    assert len(items) == 300
    whole = (await raw(fleet, "/api/v1/pods"))[2]
    asked = [len(member.requests) for member in fleet.members.values()]
    monkeypatch.setattr(spool, "PACKED", 500)
    assert (await raw(fleet, "/api/v1/pods"))[2] == whole
    assert [len(member.requests) for member in fleet.members.values()] == [n + 2 for n in asked], "asked again"


async def test_what_changed_between_two_answers_is_never_passed_on(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "PLAIN", 2000)
    monkeypatch.setattr(spool, "BLOCK", 1000)
    monkeypatch.setattr(spool, "PACKED", 500)
    for i in range(300):
        fleet.write("east", pod(f"p{i:03}", app="x" * 20))
    east, before = fleet.members["east"], len(fleet.members["east"].requests)
    real = east._many

    async def shorter(request: Any) -> Any:
        answer = await real(request)
        if len(east.requests) == before + 2:
            scanner = proto.ListScanner()
            items = scanner.feed(answer.body)
            return type(answer)(body=model.list_of("v1", "PodList", {"resourceVersion": "1"}, items[:-1]), content_type=PROTOBUF)
        return answer

    east.serve_many = shorter
    assert len(pods_in((await raw(fleet, "/api/v1/pods"))[2])[1]) == 300
    assert len(east.requests) == before + 4, "begun anew"
    before += 4
    monkeypatch.setattr(respond, "HOLD", 1000)  # too late to begin anew
    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)):
        await raw(fleet, "/api/v1/pods")


async def test_watch_from_a_version(fleet: Fleet) -> None:
    first = fleet.clock.head
    fleet.write("east", pod("a"))
    async with frames(fleet, f"resourceVersion={first}") as following:
        type_, meta = await following()
        assert (type_, meta.name, meta.version) == ("ADDED", "a", str(fleet.clock.head))
        assert meta.annotations() == {"reclock.dev/cluster": "east"}
        fleet.write("west", pod("b", app="x"))
        assert [(await following())[1].name] == ["b"]
        fleet.write("east", pod("a"), delete=True)
        type_, meta = await following()
        assert (type_, meta.name) == ("DELETED", "a")


async def test_fault_10_30_watch_list_in_protobuf_ends_with_one_bookmark(fleet: Fleet) -> None:
    fleet.write("east", pod("b"))
    fleet.write("west", pod("a"))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    for accept in (PROTOBUF, PROTOBUF + PARTIAL):
        async with frames(fleet, query, accept) as following:
            told = [await following() for _ in range(3)]
            assert [(t, m.name) for t, m in told] == [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", "")]
            assert told[2][1].annotations() == {"k8s.io/initial-events-end": "true"}
            assert told[2][1].version == str(fleet.clock.head)


async def test_leaving_a_selector_shows_the_old_labels(fleet: Fleet) -> None:
    fleet.write("east", pod("a", app="web"))
    async with frames(fleet, f"resourceVersion={fleet.clock.head}&labelSelector=app%3Dweb") as following:
        fleet.write("east", pod("a", app="other"))
        type_, meta = await following()
        assert (type_, meta.labels(), meta.version) == ("DELETED", {"app": "web"}, str(fleet.clock.head))


async def test_field_selectors_are_judged_on_json(fleet: Fleet) -> None:
    async with frames(fleet, f"resourceVersion={fleet.clock.head}&fieldSelector=spec.nodeName%3Dn0") as following:
        other = pod("no")
        other["spec"]["nodeName"] = "n9"
        fleet.write("east", other)
        fleet.write("east", pod("yes"))
        assert (await following())[1].name == "yes"


async def test_a_deletion_that_nobody_tells_is_made_of_its_marker(fleet: Fleet) -> None:
    obj = fleet.write("east", pod("a", app="web"))
    async with frames(fleet, f"resourceVersion={fleet.clock.head}") as following:
        fleet.members["east"].mute = True
        fleet.members["east"].version += 5
        obj["metadata"]["resourceVersion"] = str(fleet.members["east"].version)
        from _fastpath.marker import DIFF

        fleet.clock.log("east", obj, delete=True, kind=DIFF)
        type_, meta = await following()
        assert (type_, meta.name, meta.namespace, meta.uid) == ("DELETED", "a", "default", "uid-default-a")
        assert meta.labels() == {"app": "web"} and meta.annotations() == {"reclock.dev/cluster": "east"}


async def test_errors_are_protobuf_where_that_is_preferred(fleet: Fleet) -> None:
    for accept in (PROTOBUF, f"{PROTOBUF},application/json"):
        code, kind, body = await raw(fleet, "/api/v1/namespaces/default/pods/none", accept)
        assert (code, kind) == (404, PROTOBUF)
        status = status_pb.decode(body)
        assert status is not None and status["details"] == {"name": "none", "kind": "pods"}
        assert status["message"] == 'pods "none" not found'
    code, kind, _ = await raw(fleet, "/api/v1/namespaces/default/pods/none", f"application/json,{PROTOBUF}")
    assert (code, kind) == (404, "application/json")
    async with frames(fleet, f"resourceVersion={(BASE << 7) - 5}") as following:
        type_, status = await following()
        assert type_ == "ERROR" and (status["code"], status["reason"]) == (410, "Expired")


async def test_a_table_never_is(fleet: Fleet) -> None:
    table = ";as=Table;g=meta.k8s.io;v=v1"
    code, kind, _ = await raw(fleet, "/api/v1/pods", PROTOBUF + table)
    assert code == 406
    code, kind, _ = await raw(fleet, "/api/v1/pods", f"{PROTOBUF}{table},application/json{table}")
    assert (code, kind) == (200, "application/json")


async def test_custom_resources_have_their_metadata_only(fleet: Fleet) -> None:
    """Kubernetes: JSON where it is accepted too, else 406; PartialObjectMetadata in protobuf all the same."""
    fleet.aggregated = replace(PODS, kind="Widget")
    fleet.write("east", pod("a"))
    assert (await raw(fleet, "/api/v1/pods", f"{PROTOBUF},application/json"))[:2] == (200, "application/json")
    assert (await raw(fleet, "/api/v1/pods"))[0] == 406
    code, kind, body = await raw(fleet, "/api/v1/pods", PROTOBUF + PARTIALS)
    assert (code, kind) == (200, PROTOBUF) and len(pods_in(body)[1]) == 1


@pytest.mark.parametrize("path", ["/api/v1/pods", "/api/v1/namespaces/default/pods/a"])
async def test_a_member_without_it_makes_the_answer_json(fleet: Fleet, path: str) -> None:
    fleet.members["west"].protobuf = False
    fleet.write("west", pod("a"))
    fleet.write("east", pod("b"))
    assert (await raw(fleet, path, f"{PROTOBUF},application/json"))[:2] == (200, "application/json")
    assert (await raw(fleet, path))[0] == 406


async def test_a_member_without_it_makes_a_watch_begin_anew(fleet: Fleet) -> None:
    both = f"{PROTOBUF},application/json"
    fleet.members["west"].protobuf = False
    version = fleet.clock.head
    async with frames(fleet, f"resourceVersion={version}", both) as following:
        fleet.write("west", pod("a"))
        type_, status = await following()
        assert type_ == "ERROR" and status["code"] == 410
    async with fleet.watch(f"resourceVersion={version}", Accept=both) as stream:
        event = await stream.next()
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
    async with fleet.watch("", Accept=both) as stream:
        assert (await stream.next())["object"]["metadata"]["name"] == "a"


async def test_garbage_of_a_member_is_not_passed_on(fleet: Fleet) -> None:
    from aiohttp import web

    obj = fleet.write("east", pod("a"))
    for garbage in (b"k8s\x00\xff\xff", b"k8s\x00", b"<html>", json.dumps(obj).encode()):
        fleet.members["east"].fail = lambda body=garbage: web.Response(body=body, content_type=PROTOBUF)
        fleet.members["east"].fail_get = lambda body=garbage: web.Response(body=body, content_type=PROTOBUF)
        code, _, body = await raw(fleet, "/api/v1/pods")
        assert code == 200 and pods_in(body)[1] == [], "left out, with a gap"
        if not garbage.startswith(b"{"):
            assert (await raw(fleet, "/api/v1/namespaces/default/pods/a"))[0] == 503
    assert fleet.clock.gaps


@pytest.mark.parametrize(("group", "field"), [("", "involvedObject"), ("events.k8s.io", "regarding")])
async def test_what_an_event_is_about_has_the_hosts_uid_in_either_version(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, group: str, field: str
) -> None:
    version = f"{group}/v1" if group else "v1"
    fleet.aggregated = fleet.clock.aggregated = replace(PODS, resource="events", kind="Event")
    monkeypatch.setattr(fleet.owners, "object_uids", lambda cluster: {"member-uid": "host-uid"})
    obj = pod("a")
    written = fleet.write("east", {"metadata": obj["metadata"], field: {"kind": "Pod", "uid": "member-uid"}})
    body = model.envelope(version, "Event", model.body_of(written, version, "Event"))
    shown = json.loads(to_json(await fleet.reads.show(fleet.clock, "east", body)))  # type: ignore[arg-type]
    assert shown[field]["uid"] == "host-uid" and shown["apiVersion"] == version
