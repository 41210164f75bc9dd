"""Reading one object: routes, numbers, waiting for the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from reads_fake import Fleet, fleet_of, pod, status

from services.aggregator.reads import getter, service

PATH = "/api/v1/namespaces/default/pods/a"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@pytest.fixture
async def fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(getter, "SETTLE", 0.3)
    async with fleet_of("east", "west") as fleet:
        yield fleet


async def test_get_shows_the_body_under_its_own_number(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    code, body = await fleet.get(PATH)
    assert code == 200 and body["kind"] == "Pod"
    assert body["metadata"]["resourceVersion"] == str(fleet.clock.marker("east", "default", "a").fleet)
    assert body["metadata"]["annotations"]["reclock.dev/cluster"] == "east"
    assert fleet.clock.barriers == 1


async def test_the_sequencer_itself_needs_no_barrier_for_what_one_member_holds(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.clock.certain = True
    assert (await fleet.get(PATH))[0] == 200 and fleet.clock.barriers == 0
    fleet.write("west", pod("a", uid="other"))
    assert (await fleet.get(PATH))[0] == 200 and fleet.clock.barriers == 1
    assert (await fleet.get(PATH + "x"))[0] == 404 and fleet.clock.barriers == 2


async def test_the_sequencer_waits_for_its_own_transaction(fleet: Fleet) -> None:
    """It may have given the object a new number, which another replica has shown: as when a gap heals."""
    same = fleet.write("east", pod("a"))
    old = fleet.clock.head
    fleet.clock.certain = fleet.clock.committing = True
    task = asyncio.create_task(fleet.get(PATH))
    await asyncio.sleep(0.1)
    assert not task.done()
    fleet.clock.committing = False
    fleet.clock.log("east", same)
    code, body = await task
    assert code == 200 and int(body["metadata"]["resourceVersion"]) > old and fleet.clock.barriers == 0


async def test_get_waits_until_the_log_has_the_body(fleet: Fleet) -> None:
    fleet.write("east", pod("a", app="1"))
    newer = fleet.write("east", pod("a", app="2"), log=False)
    task = asyncio.create_task(fleet.get(PATH))
    await asyncio.sleep(0.1)
    assert not task.done()
    number = fleet.clock.log("east", newer)
    code, body = await task
    assert code == 200 and body["metadata"]["labels"] == {"app": "2"}
    assert body["metadata"]["resourceVersion"] == str(fleet.clock.marker("east", "default", "a").fleet) and number


async def test_get_that_the_log_does_not_reach_is_503_with_retry_after(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.write("east", pod("a"), log=False)
    async with fleet.http.get(PATH) as answer:
        assert answer.status == 503 and answer.headers["Retry-After"] == "1"


async def test_get_reads_again_what_a_diff_passed_over(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.write("east", pod("a", n="2"), log=False)
    last = fleet.write("east", pod("a", n="3"), log=False)
    old = fleet.members["east"].objects["default/a"]
    fleet.members["east"].objects["default/a"] = {**old, "metadata": {**old["metadata"], "resourceVersion": "102"}}
    task = asyncio.create_task(fleet.get(PATH))
    await asyncio.sleep(0.1)
    fleet.clock.log("east", last)
    fleet.members["east"].objects["default/a"] = last
    code, body = await task
    assert code == 200 and body["metadata"]["labels"] == {"n": "3"}


async def test_get_of_nothing_is_404_after_the_barrier(fleet: Fleet) -> None:
    code, body = await fleet.get(PATH)
    assert code == 404 and body["reason"] == "NotFound" and body["message"] == 'pods "a" not found'
    assert fleet.clock.barriers >= 1 and not fleet.members["east"].requests


async def test_404_of_the_member_waits_for_the_deletion(fleet: Fleet) -> None:
    obj = fleet.write("east", pod("a"))
    gone = fleet.write("east", obj, delete=True, log=False)
    task = asyncio.create_task(fleet.get(PATH))
    await asyncio.sleep(0.1)
    assert not task.done()
    fleet.clock.log("east", gone, delete=True)
    code, _body = await task
    assert code == 404


async def test_404_of_the_member_with_a_live_marker_is_503(fleet: Fleet) -> None:
    obj = fleet.write("east", pod("a"))
    fleet.write("east", obj, delete=True, log=False)
    code, _body = await fleet.get(PATH)
    assert code == 503


async def test_route_is_checked_again(fleet: Fleet) -> None:
    first = fleet.write("east", pod("a", uid="old"))
    second = fleet.write("west", pod("a", uid="new"))
    entered, leave = asyncio.Event(), asyncio.Event()
    clock = fleet.clock
    real = clock.snapshot

    async def held(**kwargs: object) -> object:
        entered.set()
        await leave.wait()
        return await real(**kwargs)  # type: ignore[arg-type]

    clock.snapshot = held  # type: ignore[method-assign]
    task = asyncio.create_task(fleet.get(PATH))
    await entered.wait()
    await asyncio.sleep(0.1)  # east answered already
    from _fastpath.marker import Marker

    clock.show_next(Marker("east", "east-uid/0", "default", "a", "old", 150, deleted=True), second, "west")
    leave.set()
    code, body = await task
    assert code == 200 and body["metadata"]["uid"] == "new" and first


async def test_unreachable_member_is_503(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    fleet.members["east"].fail_get = lambda: status(503, "ServiceUnavailable")
    code, _body = await fleet.get(PATH)
    assert code == 503


async def test_version_zero_needs_no_barrier_and_the_future_is_504(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    code, _ = await fleet.get(PATH + "?resourceVersion=0")
    assert code == 200 and fleet.clock.barriers == 0
    code, body = await fleet.get(f"{PATH}?resourceVersion={fleet.clock.head + 500}")
    assert code == 504 and body["reason"] == "Timeout"
    code, body = await fleet.get(PATH + "?resourceVersion=x")
    assert code == 400


async def test_table_of_one(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    number = str(fleet.clock.marker("east", "default", "a").fleet)
    _code, body = await fleet.get(PATH, Accept=TABLE)
    assert [c["name"] for c in body["columnDefinitions"]] == ["Name", "Cluster", "Ready"]
    assert body["metadata"]["resourceVersion"] == number
    assert body["rows"][0]["cells"] == ["a", "east", "1/1"]
    assert body["rows"][0]["object"]["metadata"]["resourceVersion"] == number


async def test_partial_of_one_but_not_as_list(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    code, body = await fleet.get(PATH, Accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
    assert body["kind"] == "PartialObjectMetadata" and "spec" not in body
    code, _ = await fleet.get(PATH, Accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
    assert code == 406


async def test_show_waits_for_a_writes_version(fleet: Fleet) -> None:
    obj = fleet.write("east", pod("a"), log=False)
    body = json.dumps({"kind": "Pod", "apiVersion": "v1", **obj}).encode()
    task = asyncio.create_task(fleet.reads.show(fleet.clock, "east", body, "", timeout=1.0))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    assert not task.done()
    fleet.clock.log("east", obj)
    shown = json.loads(await task)
    assert shown["metadata"]["resourceVersion"] == str(fleet.clock.marker("east", "default", "a").fleet)


async def test_show_is_504_when_the_log_does_not_come(fleet: Fleet) -> None:
    from services.common.errors import StatusError

    obj = fleet.write("east", pod("a"), log=False)
    body = json.dumps({"kind": "Pod", "apiVersion": "v1", **obj}).encode()
    with pytest.raises(StatusError) as caught:
        await fleet.reads.show(fleet.clock, "east", body, "", timeout=0.1)  # type: ignore[arg-type]
    assert caught.value.code == 504 and service


async def test_a_write_whose_object_is_gone_was_done_all_the_same(fleet: Fleet) -> None:
    """The log passed its state over, and there is nothing to read again: an error would deny the write."""
    old = fleet.write("east", pod("a"), log=False)
    fleet.write("east", old, delete=True)
    body = json.dumps({"kind": "Pod", "apiVersion": "v1", **old}).encode()
    shown = json.loads(await fleet.reads.show(fleet.clock, "east", body, "", timeout=1.0))  # type: ignore[arg-type]
    assert shown["metadata"]["name"] == "a" and "resourceVersion" not in shown["metadata"]


async def test_a_write_that_ends_its_object_is_shown_under_the_deletion(fleet: Fleet) -> None:
    """A PATCH that takes the last finalizer away is answered the object under the version of its deletion."""
    old = fleet.write("east", pod("a"))
    gone = fleet.write("east", old, delete=True)
    body = json.dumps({"kind": "Pod", "apiVersion": "v1", **gone}).encode()
    for again in (False, True):
        if again:
            fleet.write("east", pod("a") | {"metadata": {**pod("a")["metadata"], "uid": "another"}})
        shown = json.loads(await fleet.reads.show(fleet.clock, "east", body, timeout=0.1))  # type: ignore[arg-type]
        end = fleet.clock.marker("east", "default", "a")
        assert end is not None
        assert shown["metadata"]["resourceVersion"] == str(end.prev.fleet if again else end.fleet)


async def test_a_write_is_never_answered_with_another_object_of_its_name(fleet: Fleet) -> None:
    old = fleet.write("east", pod("a"), log=False)
    fleet.write("east", old, delete=True, log=False)
    fleet.write("east", pod("a") | {"metadata": {**pod("a")["metadata"], "uid": "another"}})
    body = json.dumps({"kind": "Pod", "apiVersion": "v1", **old}).encode()
    shown = json.loads(await fleet.reads.show(fleet.clock, "east", body, timeout=1.0))  # type: ignore[arg-type]
    assert shown["metadata"]["uid"] == old["metadata"]["uid"] and "resourceVersion" not in shown["metadata"]


async def test_two_objects_with_one_member_version(fleet: Fleet) -> None:
    """The log has reached the version by the other object: this one's state is still on its way, not passed over."""
    first, second = pod("a"), pod("b")
    for obj in (first, second):
        obj["metadata"]["resourceVersion"] = "150"
    waiting = asyncio.create_task(fleet.clock.wait_version("east", "default", "b", second["metadata"]["uid"], 150, timeout=5))
    fleet.clock.log("east", first)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    fleet.clock.log("east", second)
    marker = await waiting
    assert marker is not None and (marker.name, marker.fleet) == ("b", fleet.clock.head)
    passed = await fleet.clock.wait_version("east", "default", "c", "uid", 149, timeout=5)
    assert passed is None, "what lies before the position and is not in the log was passed over"


async def test_show_leaves_a_status_as_it_is(fleet: Fleet) -> None:
    body = b'{"kind":"Status","apiVersion":"v1","status":"Success"}'
    assert await fleet.reads.show(fleet.clock, "east", body) == body  # type: ignore[arg-type]
