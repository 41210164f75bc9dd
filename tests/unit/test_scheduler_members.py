"""The manager's members: which cluster it is, whose objects are ours, and writes that only the leader makes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from scheduler_fakes import FakeClock

from services.common.errors import MemberUnreachable, StatusError
from services.common.fleet import Member
from services.common.kube.objects import Response
from services.common.kube.shape import Shape
from services.scheduler.config import SchedulerConfig
from services.scheduler.feed import ORIGIN_LABEL, MemberFeed
from services.scheduler.fleet import Fleet
from services.scheduler.ledger import OwnerKey
from services.scheduler.manager import Manager
from services.scheduler.member import MemberState
from services.scheduler.members import Members
from services.scheduler.resync import Resync
from services.scheduler.store import HostStore, StaleError
from services.scheduler.workload import parse

DB = OwnerKey("ns", "StatefulSet", "db")


class Client:
    """Answers GETs with objects by path; a path without one is 404."""

    shape = Shape()
    label = "cluster east"

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {self.shape.identity_path: {"metadata": {"uid": "uid-1"}}}
        self.lists = 0

    async def request(self, method: str, path: str, **how: Any) -> Response:
        found = self.answers.get(path)
        if isinstance(found, StatusError):
            raise found
        if found is None:
            raise StatusError(404, "NotFound", path)
        return Response(200, {}, msgspec.json.encode(found))  # type: ignore[arg-type]

    def stream(self, *args: Any, **how: Any) -> Any:
        raise MemberUnreachable("no watches here")


class Beats:
    """Heartbeats that only note who is engaged."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def engage(self, cluster: str, send: Any) -> None:
        self.calls.append(("engage", cluster))

    def disengage(self, cluster: str) -> None:
        self.calls.append(("disengage", cluster))


def members(beats: Beats | None = None, **workers: str) -> Members:
    async def resync(cluster: str) -> bool:
        return True

    return Members(
        Fleet(), FakeClock(), workers=workers, tls=None, ttl=30, deadline=1, on_change=lambda cluster: None,
        on_state=lambda cluster, freed: None, resync=resync, heartbeats=beats or Beats(),  # type: ignore[arg-type]
    )  # fmt: skip


async def test_an_answer_of_another_cluster_in_its_place_is_no_sign_of_life() -> None:
    made, client = members(), Client()
    member = Member("east", uid="uid-1", client=client)  # type: ignore[arg-type]
    await made.engaged(member)
    assert await made.probe("east")
    client.answers[Client.shape.identity_path] = {"metadata": {"uid": "uid-2"}}
    assert not await made.probe("east")
    client.answers[Client.shape.identity_path] = StatusError(401, "Unauthorized", "who are you")
    assert await made.probe("east"), "it refuses us, so it is there"
    member.leaving_since = FakeClock().now()
    assert not await made.probe("east"), "that may be the one that waits for its name"
    client.answers[Client.shape.identity_path] = MemberUnreachable("cannot connect")
    assert not await made.probe("east")
    await made.close()


async def test_another_cluster_under_the_name_starts_without_what_was_known_of_the_old_one() -> None:
    beats = Beats()
    made = members(beats, east="127.0.0.1:1")
    member = Member("east", uid="uid-1", client=Client())  # type: ignore[arg-type]
    await made.engaged(member)
    before = made.fleet.admissions["east"]
    old = member.snapshot()
    member.uid = "uid-2"
    await made.updated(member, old)
    assert made.fleet.admissions["east"] is not before
    assert beats.calls == [("engage", "east"), ("disengage", "east"), ("engage", "east")]
    await made.close()


@pytest.mark.parametrize(("labels", "asked_for", "clashes"), [
    ({ORIGIN_LABEL: "mine"}, "", False), ({ORIGIN_LABEL: "theirs"}, "", True), ({}, "", True),
    ({ORIGIN_LABEL: "theirs"}, "theirs", False), ({ORIGIN_LABEL: "mine"}, "theirs", True),
])  # fmt: skip
async def test_only_objects_of_the_fleet_that_asks_are_ours(labels: dict[str, str], asked_for: str, clashes: bool) -> None:
    client = Client()
    client.answers["/apis/apps/v1/namespaces/ns/statefulsets/db"] = {"metadata": {"labels": labels}}
    feed = MemberFeed(client, MemberState("east"), lambda: "mine")  # type: ignore[arg-type]
    assert bool(await feed.clash(DB, asked_for)) is clashes
    assert await feed.clash(OwnerKey("ns", "StatefulSet", "none"), asked_for) == ""


async def test_only_who_leads_writes_placements() -> None:
    sent: list[dict[str, Any]] = []
    left = 0.0

    class Host:
        label = "host"

        async def patch(self, resource: Any, namespace: str, name: str, body: dict[str, Any], **query: Any) -> Any:
            sent.append(body)
            return {"metadata": {**body["metadata"], "name": name, "namespace": namespace}, "spec": {}}

    store = HostStore(Host(), lambda key, echo: None, lambda: left)  # type: ignore[arg-type]
    workload = parse({"metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7"}, "spec": {}})
    with pytest.raises(StatusError, match="does not lead"):
        await store.patch_status(workload, {})
    assert sent == []
    left = 0.05
    await store.patch_status(workload, {})
    assert sent[0]["metadata"] == {"resourceVersion": "7", "uid": "u"}


class Holds:
    """Takes notes of nothing."""

    def forget_confirmed(self, cluster: str) -> None:
        pass


class Stores(list[Any]):
    """Workloads that were all read."""

    def __init__(self, *found: Any) -> None:
        super().__init__(found)
        self.informer = SimpleNamespace(synced=asyncio.Event())
        self.informer.synced.set()

    def get(self, key: Any) -> Any:
        return next((item for item in self if item.key == key), None)


async def test_a_new_leader_waits_for_no_worker_that_hangs() -> None:
    """Rule 10. What an earlier leader told it, it still knows."""
    manager: Any = Manager(SchedulerConfig(grpc_address="127.0.0.1:0", http_address=""))
    workload = parse({"metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7"}, "spec": {}})
    manager._store = Stores(workload)
    manager._policy_informer = SimpleNamespace(synced=manager._store.informer.synced)
    manager._watcher = manager._policy_informer
    manager._id, manager._leader = "fleet", SimpleNamespace(remaining=lambda: 10.0)

    async def nothing(*args: Any) -> None:
        pass

    manager._heartbeats = SimpleNamespace(lead=nothing, retire=lambda: None)
    worked = asyncio.Event()

    async def reconcile(key: Any) -> None:
        worked.set()

    manager._engine = SimpleNamespace(
        reconcile=reconcile, placed_on=lambda cluster: [], holds=Holds(), waiting=set(), fleet=manager._fleet,
        gone_keys=list,
    )
    manager._resync = Resync(manager._engine, lambda: True, lambda cluster: None)

    async def hang(asks: Any) -> None:
        await asyncio.Event().wait()

    manager._fleet.admissions = {"east": SimpleNamespace(immediate=False, resync=hang)}
    task = asyncio.create_task(manager._lead())
    await asyncio.wait_for(worked.wait(), 3)
    task.cancel()
    await asyncio.wait({task})


async def test_a_host_that_does_not_know_the_type_for_a_moment_has_not_lost_the_workload() -> None:
    """Nobody would have told of it again: the informer saw nothing."""
    details: list[dict[str, Any] | None] = [None, {"name": "a", "kind": "workloads"}]

    class Host:
        label = "host"

        async def patch(self, *args: Any, **query: Any) -> Any:
            raise StatusError(404, "NotFound", "not found", details=details.pop(0))

    store = HostStore(Host(), lambda key, echo: None, lambda: 9.0)  # type: ignore[arg-type]
    obj = {"metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7"}, "spec": {}}
    store._event("ADDED", obj, None)
    workload = parse(obj)
    with pytest.raises(StatusError, match="not found"):
        await store.patch_status(workload, {})
    assert store.get(workload.key) is not None
    with pytest.raises(StaleError):
        await store.patch_status(workload, {})
    assert store.get(workload.key) is None


async def test_a_member_that_cannot_be_followed_any_more_admits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, so that discovery calls it reachable: what is known of its room would stay what it was for good."""
    now = 100.0
    monkeypatch.setattr("services.scheduler.feed.time.monotonic", lambda: now)
    feed = MemberFeed(Client(), MemberState("east"), lambda: "mine")  # type: ignore[arg-type]
    for informer in (feed._nodes, feed._pods):
        informer.synced.set()
    assert feed.problem() == ""
    feed._pods.last_error = "pods is forbidden"
    assert feed.problem() == ""
    now += 31
    assert feed.problem() == "its nodes and pods cannot be followed any more: pods is forbidden"
    feed._pods.last_error = ""
    assert feed.problem() == ""
    feed._nodes.last_error = "a restart"
    assert feed.problem() == "", "it counts anew"
