"""What must not run twice: the worker's contact and fence, and when the manager may rely on them. Clocks are moved."""

from __future__ import annotations

import asyncio
import copy
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_fakes import FakeClock, World

from reclock.scheduler.v1 import scheduler_pb2 as pb
from services.common.errors import StatusError, already_exists, conflict, not_found
from services.common.kube.resource import LEASES, Resource
from services.common.kube.shape import Shape
from services.common.tasks import Tasks
from services.scheduler.contact import Contact
from services.scheduler.feed import ORIGIN_LABEL
from services.scheduler.fence import AT_MOST_ONCE, BEFORE, FENCED, Fence
from services.scheduler.heartbeats import Heartbeats
from services.scheduler.ledger import OwnerKey

Obj = dict[str, Any]
DB = OwnerKey("ns", "StatefulSet", "db")


class Api:
    """One cluster's apiserver: get, list, create, update, merge patch, delete, with versions."""

    shape = Shape()

    def __init__(self) -> None:
        self.uid = "uid-east"
        self.objects: dict[tuple[str, str, str], Obj] = {}
        self.refuse: StatusError | None = None
        self.graces: dict[str, Any] = {}
        self._version = 0

    def put(self, resource: Resource, obj: Obj) -> Obj:
        self._version += 1
        meta = obj["metadata"]
        meta["resourceVersion"] = str(self._version)
        meta.setdefault("uid", f"uid-{meta['name']}")
        meta["generation"] = meta.get("generation", 0) + 1
        self.objects[resource.key, meta.get("namespace", ""), meta["name"]] = obj
        return copy.deepcopy(obj)

    def _check(self) -> None:
        if self.refuse is not None:
            raise self.refuse

    async def request(self, method: str, path: str, **how: Any) -> Any:
        self._check()
        assert (method, path) == ("GET", self.shape.identity_path)
        return SimpleNamespace(json=lambda: {"metadata": {"uid": self.uid}})

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Obj:
        self._check()
        found = self.objects.get((resource.key, namespace or "", name))
        if found is None:
            raise not_found(resource.resource, name)
        return copy.deepcopy(found)

    async def list(self, resource: Resource, namespace: str | None = None, **query: Any) -> Obj:
        self._check()
        items = [copy.deepcopy(o) for (key, ns, _), o in self.objects.items() if key == resource.key and ns == namespace]
        return {"items": items}

    async def create(self, resource: Resource, namespace: str | None, obj: Obj, **query: Any) -> Obj:
        self._check()
        if (resource.key, namespace or "", obj["metadata"]["name"]) in self.objects:
            raise already_exists(resource.resource, obj["metadata"]["name"])
        return self.put(resource, copy.deepcopy(obj))

    async def update(self, resource: Resource, namespace: str | None, obj: Obj) -> Obj:
        self._check()
        stored = await self.get(resource, namespace, obj["metadata"]["name"])
        if stored["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise conflict(resource.resource, obj["metadata"]["name"], "changed")
        return self.put(resource, copy.deepcopy(obj))

    async def patch(self, resource: Resource, namespace: str, name: str, patch: Obj, *args: Any, **query: Any) -> Obj:
        stored = await self.get(resource, namespace, name)
        if stored["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"]:
            raise conflict(resource.resource, name, "changed")
        notes = {**(stored["metadata"].get("annotations") or {}), **patch["metadata"]["annotations"]}
        stored["metadata"]["annotations"] = {key: value for key, value in notes.items() if value is not None}
        stored["spec"] |= patch["spec"]
        return self.put(resource, stored)

    async def delete(self, resource: Resource, namespace: str, name: str, **query: Any) -> None:
        self.graces[name] = query.get("grace")
        del self.objects[resource.key, namespace, name]


class Boot:
    """A clock that counts from boot."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def beat(nonce: str = "", after: float = 450, **exceptions: float) -> pb.HeartbeatRequest:
    request = pb.HeartbeatRequest(cluster="east", fleet_id="fleet", acknowledged=nonce)
    request.fence_after.FromNanoseconds(int(after * 1e9))
    for name, seconds in exceptions.items():
        item = request.exceptions.add(owner=pb.OwnerRef(kind="StatefulSet", namespace="ns", name=name))
        item.fence_after.FromNanoseconds(int(seconds * 1e9))
    return request


# The worker's contact.


async def test_only_an_answered_heartbeat_renews_and_counts_from_its_nonce() -> None:
    boot = Boot()
    contact = Contact(Api(), "east", now=boot, boot="b")  # type: ignore[arg-type]
    assert not contact.take(beat())
    nonce = contact.issue()
    boot.seconds += 10
    assert not contact.take(beat("another"))
    assert not contact.is_due(DB), "there was never any contact: nothing is known that could run twice"
    assert contact.take(beat(nonce, keeps=1000))
    assert contact.last == 1000.0
    contact.issue()
    assert not contact.take(beat(nonce)), "an old nonce is no sign of life"
    boot.seconds = 1449.9
    assert contact.is_live()
    assert not contact.is_due(DB)
    boot.seconds = 1450.1
    assert contact.is_due(DB)
    assert not contact.is_due(OwnerKey("ns", "StatefulSet", "keeps"))
    boot.seconds = 2000.1
    assert contact.is_due(OwnerKey("ns", "StatefulSet", "keeps"))


async def in_contact(api: Api, boot: Boot, name: str = "b") -> Contact:
    contact = Contact(api, "east", now=boot, boot=name)  # type: ignore[arg-type]
    contact.take(beat(contact.issue(), keeps=1000))
    await contact.store()
    assert contact.stored
    return contact


async def test_a_restarted_worker_knows_when_contact_was_last() -> None:
    api, boot = Api(), Boot()
    await in_contact(api, boot)
    boot.seconds += 440
    again = Contact(api, "east", now=boot, boot="b")  # type: ignore[arg-type]
    await again.restore()
    assert (again.last, again.fleet_id) == (1000.0, "fleet")
    assert again.exceptions == {OwnerKey("ns", "StatefulSet", "keeps"): 1000.0}
    boot.seconds += 12
    assert not again.is_due(DB), "the manager gets a moment to come back"
    boot.seconds += 4
    assert again.is_due(DB)
    # One that starts when the manager may be about to move the work gives no grace.
    boot.seconds = 1000 + 700
    late = Contact(api, "east", now=boot, boot="b")  # type: ignore[arg-type]
    await late.restore()
    assert late.is_due(DB)


@pytest.mark.parametrize(("skew", "due"), [(-400.0, False), (-1000.0, True), (3600.0, True)])
async def test_after_a_reboot_the_wall_clock_decides_and_the_future_is_not_believed(skew: float, due: bool) -> None:
    api, boot = Api(), Boot()
    await in_contact(api, boot, "before")
    lease = api.objects[LEASES.key, "kube-system", "reclock-contact-east"]
    moment = datetime.fromtimestamp(time.time() + skew, UTC)
    lease["spec"]["renewTime"] = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    boot.seconds = 5.0
    again = Contact(api, "east", now=boot, boot="after")  # type: ignore[arg-type]
    await again.restore()
    boot.seconds += 16
    assert again.is_due(DB) is due


async def test_a_contact_that_cannot_be_kept_is_no_promise() -> None:
    api, boot = Api(), Boot()
    contact = await in_contact(api, boot)
    api.refuse = StatusError(403, "Forbidden", "no leases for you")
    contact.take(beat(contact.issue()))
    await contact.store()
    assert not contact.stored
    assert "no leases" in contact.problem


# The fence.


def resource(kind: str) -> Resource:
    from services.scheduler.feed import KINDS

    return KINDS[kind]


class Guarded:
    """A fence over one cluster, whose informers are filled by hand."""

    def __init__(self) -> None:
        self.api, self.boot = Api(), Boot()
        self.fence = Fence(self.api, "east", Contact(self.api, "east", now=self.boot, boot="b"))  # type: ignore[arg-type]
        self.fence._restored = True
        for informer in self.fence._informers.values():
            informer.synced.set()

    def copy(self, kind: str, name: str, *, origin: str = "fleet", notes: Obj | None = None, **spec: Any) -> None:
        meta = {"name": name, "namespace": "ns", "labels": {ORIGIN_LABEL: origin}, "annotations": notes or {}}
        self.api.put(resource(kind), {"metadata": meta, "spec": spec})

    def see(self) -> None:
        for kind, informer in self.fence._informers.items():
            informer.store.clear()
            for (key, namespace, name), obj in self.api.objects.items():
                if key == resource(kind).key:
                    informer.store[namespace, name] = {"metadata": copy.deepcopy(obj["metadata"])}

    async def contact(self) -> pb.HeartbeatResponse:
        nonce = self.fence.contact.issue()
        return await self.fence.heartbeat(beat(nonce))

    async def round(self) -> None:
        self.see()
        for kind, obj in self.fence._copies():
            if self.fence.contact.is_due(OwnerKey("ns", kind, obj["metadata"]["name"])) and not self.fence._is_held(obj):
                await self.fence._stop(kind, obj)
        self.see()

    def at(self, kind: str, name: str) -> Obj:
        return self.api.objects[resource(kind).key, "ns", name]


async def test_copies_are_stopped_not_removed_and_only_ours_that_must_not_run_twice() -> None:
    one = Guarded()
    once = {AT_MOST_ONCE: "true"}
    one.copy("StatefulSet", "db", replicas=3, selector={"matchLabels": {"app": "db"}})
    one.copy("StatefulSet", "foreign", origin="another", replicas=1)
    one.copy("Job", "once", notes=once)
    one.copy("Job", "many")
    pods = Resource("", "v1", "pods", "Pod")
    for name, owner in (("db-0", "uid-db"), ("other", "uid-x")):
        one.api.put(pods, {"metadata": {"name": name, "namespace": "ns", "ownerReferences": [{"uid": owner}]}})
    one.see()
    answer = await one.contact()
    assert (answer.fences, answer.fenced, answer.problem) == (True, 0, "")
    one.boot.seconds += 449
    await one.round()
    assert one.at("StatefulSet", "db")["spec"]["replicas"] == 3
    one.boot.seconds += 2
    await one.round()
    assert one.at("StatefulSet", "db")["spec"]["replicas"] == 0
    assert one.at("StatefulSet", "db")["metadata"]["annotations"][BEFORE] == "3"
    assert one.at("Job", "once")["spec"]["suspend"] is True
    assert one.at("StatefulSet", "foreign")["spec"]["replicas"] == 1
    assert "suspend" not in one.at("Job", "many")["spec"]
    assert ("pods", "ns", "db-0") not in one.api.objects
    assert ("pods", "ns", "other") in one.api.objects
    # Whoever writes the copy meanwhile loses, and what it was is not forgotten.
    written = one.at("StatefulSet", "db")
    written["spec"]["replicas"] = 5
    one.api.put(resource("StatefulSet"), written)
    await one.round()
    assert one.at("StatefulSet", "db")["spec"]["replicas"] == 0
    assert one.at("StatefulSet", "db")["metadata"]["annotations"][BEFORE] == "3"


async def test_no_grace_period_outlasts_the_managers_patience() -> None:
    one = Guarded()
    one.copy("StatefulSet", "db", replicas=2, selector={"matchLabels": {"app": "db"}})
    for name, grace in (("db-0", 30), ("db-1", 3600)):
        meta = {"name": name, "namespace": "ns", "ownerReferences": [{"uid": "uid-db"}]}
        one.api.put(Resource("", "v1", "pods", "Pod"), {"metadata": meta, "spec": {"terminationGracePeriodSeconds": grace}})
    one.see()
    await one.contact()
    one.boot.seconds += 451
    await one.round()
    assert one.api.graces == {"db-0": None, "db-1": 225}


async def test_pods_of_jobs_have_no_longer_to_end_either_and_are_waited_for() -> None:
    one = Guarded()
    one.copy("Job", "once", notes={AT_MOST_ONCE: "true"}, selector={"matchLabels": {"app": "once"}})
    pods = Resource("", "v1", "pods", "Pod")
    gone: Obj = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3600}
    owner = {"ownerReferences": [{"uid": "uid-once"}], "namespace": "ns"}
    for name, fields, phase in (("new", {}, "Running"), ("told", gone, "Running"), ("over", {}, "Succeeded")):
        meta = {"name": name, **owner, **fields}
        one.api.put(pods, {"metadata": meta, "spec": {"terminationGracePeriodSeconds": 3600}, "status": {"phase": phase}})
    one.see()
    await one.contact()
    one.boot.seconds += 451
    stuck = one.api.objects["pods", "ns", "new"]
    await one.round()
    assert one.at("Job", "once")["spec"]["suspend"] is True
    assert one.api.graces == {"new": 225, "told": 225}, "its controller may have deleted it with its own grace period"
    assert ("pods", "ns", "over") in one.api.objects, "its logs may be read"
    assert not one.fence._is_held(one.at("Job", "once")), "it counts when its pods are seen to be gone"
    # One that does not end is not given up.
    stuck["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 225}
    one.api.put(pods, stuck)
    await one.round()
    assert not one.fence._is_held(one.at("Job", "once"))
    del one.api.objects["pods", "ns", "new"]
    await one.round()
    assert one.fence._is_held(one.at("Job", "once"))


async def test_the_fence_is_lifted_by_confirmation_in_contact_only() -> None:
    one = Guarded()
    one.copy("StatefulSet", "db", replicas=3)
    one.see()
    await one.contact()
    one.boot.seconds += 500
    await one.round()
    with pytest.raises(StatusError, match="no settled contact"):
        await one.fence.lift(DB)
    answer = await one.contact()
    assert answer.fenced == 1
    assert one.at("StatefulSet", "db")["spec"]["replicas"] == 0, "contact alone lifts nothing"
    await one.fence.lift(DB)
    assert one.at("StatefulSet", "db")["spec"]["replicas"] == 3
    assert FENCED not in one.at("StatefulSet", "db")["metadata"]["annotations"]
    one.see()
    assert (await one.contact()).fenced == 0
    # And once more, after it was lifted.
    one.boot.seconds += 500
    await one.round()
    assert one.at("StatefulSet", "db")["spec"]["replicas"] == 0


# The manager.


class Beats:
    """Heartbeats of one manager over a host that outlives it."""

    def __init__(self, host: Api, clock: FakeClock) -> None:
        self.fenced: list[str] = []
        self.sent: list[pb.HeartbeatRequest] = []
        self.remaining, self.uid = 60.0, "uid-east"
        self.exceptions: dict[OwnerKey, float] = {}
        self.made = Heartbeats(
            host, clock, namespace="kube-system", timeout=900, fleet_id=self._id,  # type: ignore[arg-type]
            exceptions=lambda cluster: self.exceptions, on_fenced=self.fenced.append,
            remaining=lambda: self.remaining, uid_of=lambda cluster: self.uid,
        )  # fmt: skip
        self.made.engage("east", self._send)

    async def _send(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        self.sent.append(request)
        return pb.HeartbeatResponse(nonce="n", fences=True)

    async def _id(self) -> str:
        return "fleet"

    async def answer(self, *, fences: bool = True, fenced: int = 0, uid: str = "") -> pb.HeartbeatRequest:
        request = self.made._request("east", "fleet")
        await self.made._heard("east", pb.HeartbeatResponse(
            nonce="n", fences=fences, fenced=fenced, renewed=bool(request.acknowledged), cluster_uid=uid,
        ))  # fmt: skip
        return request


async def test_only_a_worker_that_fences_is_relied_on() -> None:
    clock, host = FakeClock(), Api()
    beats = Beats(host, clock)
    assert beats.made.wait("east", 900) is None
    await beats.answer(fences=False)
    clock.advance(10_000)
    assert beats.made.wait("east", 900) is None
    await beats.answer()
    assert beats.made.wait("east", 900) == pytest.approx(900)
    assert (await beats.answer()).acknowledged == "n"
    clock.advance(600)
    assert beats.made.wait("east", 900) == pytest.approx(300)
    assert beats.made.wait("east", 60) == pytest.approx(300), "the worker was told no shorter time"
    clock.advance(301)
    assert beats.made.wait("east", 900) == 0
    beats.exceptions = {DB: 5000}
    await beats.answer(fenced=2)
    assert beats.fenced == ["east"]
    assert beats.made.wait("east", 900) == pytest.approx(5000)
    beats.exceptions = {}
    request = beats.made._request("east", "fleet")
    await beats.made._heard("east", pb.HeartbeatResponse(nonce="m", fences=True))
    assert request.acknowledged
    assert beats.made.wait("east", 900) == pytest.approx(5000), "a restarted worker may not have taken it"
    await beats.answer()
    assert beats.made.wait("east", 900) == pytest.approx(900)


@pytest.mark.parametrize("skew", [0.0, 86_400.0, -86_400.0])
async def test_a_new_leader_waits_by_its_own_clock_whatever_the_wall_says(skew: float) -> None:
    clock, host = FakeClock(), Api()
    beats = Beats(host, clock)
    await beats.answer()
    lease = host.objects[LEASES.key, "kube-system", "reclock-worker-east"]
    moment = clock.now() - timedelta(seconds=skew)
    lease["spec"]["renewTime"] = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    again = Beats(host, clock)
    tasks = Tasks("lead")
    await again.made.lead(tasks)
    await tasks.close()
    wait = again.made.wait("east", 900)
    assert wait is not None
    assert wait >= 0.75 * 900 - 1
    if skew == 0:
        assert wait == pytest.approx(900, abs=1)


async def test_a_worker_beside_another_cluster_says_nothing_about_this_one() -> None:
    clock, host = FakeClock(), Api()
    beats = Beats(host, clock)
    await beats.answer(uid="uid-east")
    assert beats.made.wait("east", 900) == pytest.approx(900)
    await beats.answer(uid="another")
    clock.advance(10_000)
    assert beats.made.wait("east", 900) is None
    # What an earlier leader wrote down about the cluster that had the name before holds no more, either.
    again = Beats(host, clock)
    tasks = Tasks("lead")
    await again.made.lead(tasks)
    await tasks.close()
    assert again.made.wait("east", 900) is None
    again.uid = "another"
    assert again.made.wait("east", 900) is not None


async def test_who_does_not_lead_any_more_gives_no_sign_of_life() -> None:
    """The next leader counts on it: a worker that went on hearing of this one would fence too late."""
    clock, host = FakeClock(), Api()
    beats = Beats(host, clock)
    beats.made._timeout = 0.0
    beats.remaining = 0.0
    tasks = Tasks("lead")
    await beats.made.lead(tasks)
    await asyncio.sleep(0.1)
    assert beats.sent == []
    beats.remaining = 60.0
    async with asyncio.timeout(10):
        while not beats.sent:  # noqa: ASYNC110 (the fake has no event for that)
            await asyncio.sleep(0.01)
    await tasks.close()


async def test_the_worker_says_which_cluster_it_is_beside() -> None:
    one = Guarded()
    one.see()
    assert (await one.contact()).cluster_uid == "uid-east"
    # Its access leads to another cluster by now, where nothing of its contact is kept.
    one.api.uid = "another"
    one.api.objects.clear()
    await one.contact()
    assert (await one.contact()).cluster_uid == "another"


async def test_a_worker_that_was_taken_away_is_relied_on_no_more() -> None:
    clock, host = FakeClock(), Api()
    await Beats(host, clock).answer()
    clock.advance(10_000)
    again = Beats(host, clock)
    again.made.disengage("east")
    tasks = Tasks("lead")
    await again.made.lead(tasks)
    clock.advance(10_000)
    assert again.made.wait("east", 900) is None
    again.made.engage("east", again._send)
    await tasks.close()
    assert again.made.wait("east", 900) == 0, "what it said last is known still"


async def test_a_lost_cluster_whose_worker_fences_is_left_after_the_whole_time_out() -> None:
    world = World()
    world.member("east")
    key = world.workload("web", kind="StatefulSet", count=2)
    await world.settle(key)
    world.member("west")
    waits: dict[str, float | None] = {"east": 300.0}
    world.fleet.fence_wait = lambda cluster, limit: waits[cluster]
    world.lose("east")
    world.clock.advance(901)
    await world.settle(key)
    assert world.clusters(key) == {"east": 2}
    waits["east"] = None
    world.clock.advance(10_000)
    await world.settle(key)
    assert world.clusters(key) == {"east": 2}
    waits["east"] = 0.0
    await world.settle(key)
    assert world.clusters(key) == {"west": 2}


async def test_a_fenced_copy_on_a_member_that_answers_moves_once_its_worker_is_given_up() -> None:
    world = World()
    world.member("east")
    key = world.workload("web", kind="StatefulSet", count=2)
    await world.settle(key)
    world.member("west")
    waits: dict[str, float | None] = {"east": 100.0}
    world.fleet.fence_wait = lambda cluster, limit: waits[cluster]
    message = "fenced since 2026-01-01T00:00:00Z: its worker was out of contact with the manager"
    world.report(key, copies=[{"cluster": "east", "state": "Waiting", "message": message}])
    await world.settle(key)
    assert world.clusters(key) == {"east": 2}
    waits["east"] = 0.0
    world.change("west", reachable=False)
    await world.settle(key)
    assert world.clusters(key) == {"east": 2}, "with nowhere to go it waits for its worker"
    world.change("west", reachable=True)
    world.report(key, copies=[{"cluster": "east", "state": "Waiting", "message": message}])
    await world.settle(key)
    assert world.clusters(key) == {"west": 2}


async def test_a_kept_contact_that_is_unreadable_counts_as_long_ago() -> None:
    api, boot = Api(), Boot()
    await in_contact(api, boot)
    api.objects[LEASES.key, "kube-system", "reclock-contact-east"]["metadata"]["annotations"].pop("reclock.dev/boot-time")
    again = Contact(api, "east", now=boot, boot="b")  # type: ignore[arg-type]
    await again.restore()
    assert again.is_due(DB)


@pytest.mark.parametrize("longest", ["soon", "nan", "inf", "-1"])
async def test_what_an_earlier_leader_wrote_may_be_unreadable(longest: str) -> None:
    """It ended the manager, and the next one. Nothing is known then, so that nothing moves on the word of it."""
    clock, host = FakeClock(), Api()
    await Beats(host, clock).answer()
    lease = host.objects[LEASES.key, "kube-system", "reclock-worker-east"]
    lease["metadata"]["annotations"]["reclock.dev/longest-fence"] = longest
    again, tasks = Beats(host, clock), Tasks("lead")
    await again.made.lead(tasks)
    await tasks.close()
    assert again.made.wait("east", 900) is None


@pytest.mark.parametrize("was", ["many", "-1", "", "9" * 5000])
async def test_a_fence_is_lifted_whatever_somebody_wrote_there(was: str) -> None:
    one = Guarded()
    one.copy("StatefulSet", "db", replicas=3)
    one.see()
    await one.contact()
    one.boot.seconds += 500
    await one.round()
    one.at("StatefulSet", "db")["metadata"]["annotations"]["reclock.dev/fenced-from"] = was
    one.see()
    await one.contact()
    await one.fence.lift(DB)
    assert FENCED not in one.at("StatefulSet", "db")["metadata"]["annotations"]
    assert one.at("StatefulSet", "db")["spec"]["replicas"] == 0, "the reconciler says how many"
