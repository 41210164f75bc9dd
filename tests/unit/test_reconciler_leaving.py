"""A member that no provider has any more: when it is emptied, and when it may go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from reconciler_world import Client, Made

from services.common.fleet import Taint
from services.common.kube.resource import PODS
from services.reconciler.applier import Applier
from services.reconciler.controllers import leaving, namespaces
from services.reconciler.controllers.context import Again, Context
from services.reconciler.decide import decide
from services.reconciler.keys import Key
from services.reconciler.names import CLAIMS, NAMESPACE_FINALIZER, ROUTED, SINK_ORIGIN, Obj

DRAIN = Taint("reclock.dev/maintenance", "NoExecute")


class Queue:
    """Takes keys and forgets them."""

    def add(self, cluster: str, key: str, priority: int = 0) -> None:
        pass

    def add_after(self, cluster: str, key: str, delay: float, priority: int = 0) -> None:
        pass


class Owned:
    """Routed objects of a member; deletions succeed."""

    def __init__(self) -> None:
        self.objects: list[Obj] = []

    async def routed(self, fleet_id: str, namespace: str = "") -> list[tuple[str, Obj]]:
        return [("pods", obj) for obj in self.objects if obj["metadata"]["labels"].get(ROUTED) == fleet_id]

    async def sunk(self, fleet_id: str, resources: Any) -> list[tuple[str, Obj]]:
        found = [obj for obj in self.objects if obj["metadata"]["labels"].get(SINK_ORIGIN) == fleet_id]
        return [(resource, obj) for resource in resources for obj in found]

    async def remove_routed(self, resource: str, obj: Obj) -> None:
        self.objects.remove(obj)

    def all(self) -> list[Any]:
        return []

    def in_namespace(self, namespace: str) -> list[Any]:
        return []

    async def remove_all(self, namespace: str) -> None:
        pass


class Leaves:
    """Three members, of which `east` leaves."""

    def __init__(self) -> None:
        self.made = Made("east", "west", "north")
        self.released: list[tuple[str, list[str], int]] = []
        self.valid = True
        self.context = Context(
            self.made.world, Queue(), Applier(lambda: self.valid), None, worker_lost_timeout=900.0,  # type: ignore[arg-type]
            release=self._release,
        )  # fmt: skip
        self.east = self.made.member("east")
        self.member: Client = self.east.client  # type: ignore[assignment]
        self.owned = Owned()
        self.east.owned = self.owned  # type: ignore[assignment]
        self.leave(0)

    async def _release(self, name: str, since: datetime, left: list[str], count: int) -> None:
        assert since == self.east.member.leaving_since
        self.released.append((name, left, count))

    def leave(self, ago: float) -> None:
        self.east.member.leaving_since = datetime.now(UTC) - timedelta(seconds=ago)

    async def step(self) -> bool:
        """Whether it has to be looked at again."""
        try:
            await leaving.reconcile(self.context, self.east)
        except Again:
            return True
        return False


@pytest.fixture
def leaves() -> Leaves:
    return Leaves()


async def test_an_empty_member_goes_at_once(leaves: Leaves) -> None:
    assert not await leaves.step()
    assert leaves.released == [("east", [], 0)]


async def test_no_member_goes_while_it_is_not_known_what_may_be_there(leaves: Leaves) -> None:
    leaves.leave(5000)
    leaves.context.unread = lambda: True
    assert await leaves.step()
    assert not leaves.released
    leaves.context.unread = lambda: False
    assert not await leaves.step()
    assert leaves.released == [("east", [], 0)]


async def test_nothing_is_touched_before_the_time_out(leaves: Leaves) -> None:
    leaves.owned.objects.append({"metadata": {"name": "p", "labels": {ROUTED: "fleet-id"}}})
    leaves.leave(890)
    assert await leaves.step()
    assert leaves.owned.objects
    leaves.leave(901)
    assert await leaves.step()
    assert not leaves.owned.objects
    assert not await leaves.step()
    assert leaves.released == [("east", [], 0)]


async def test_copies_of_sinks_go_too(leaves: Leaves) -> None:
    leaves.context.sinks = lambda: ["configmaps"]  # type: ignore[assignment,list-item,return-value]
    theirs = {"metadata": {"name": "theirs", "labels": {SINK_ORIGIN: "another-fleet"}}}
    leaves.owned.objects += [theirs, {"metadata": {"name": "c", "labels": {SINK_ORIGIN: "fleet-id"}}}]
    leaves.leave(890)
    assert await leaves.step() and len(leaves.owned.objects) == 2
    leaves.leave(901)
    assert await leaves.step()
    assert leaves.owned.objects == [theirs]
    assert not await leaves.step()
    assert leaves.released == [("east", [], 0)]


async def test_work_that_is_still_placed_there_holds_it(leaves: Leaves) -> None:
    made = leaves.made
    job = made.host("job", "a", spec={"template": {"spec": {"containers": []}}})
    made.placed("job", job, {"east": 1})
    leaves.leave(5000)
    assert await leaves.step()
    assert "east" not in made.world.departing
    finished = [{"type": "Finished", "status": "True"}]
    made.placed("job", job, {"east": 1}, conditions=finished)
    assert not await leaves.step()
    assert "east" in made.world.departing


async def test_drained_or_forgotten_it_need_not_wait(leaves: Leaves) -> None:
    for change in ({"taints": (DRAIN,)}, {"forgotten": True}):
        fresh = Leaves()
        fresh.owned.objects.append({"metadata": {"name": "p", "labels": {ROUTED: "fleet-id"}}})
        for name, value in change.items():
            setattr(fresh.east.member, name, value)
        assert await fresh.step()
        assert not await fresh.step()
        assert fresh.released == [("east", [], 0)]


async def test_a_member_that_cannot_be_asked_is_waited_for_then_left_behind(leaves: Leaves) -> None:
    leaves.east.informers["configmap"].store["ns", "settings"] = {"metadata": {"name": "settings", "namespace": "ns"}}
    leaves.east.member.reachable = False
    leaves.east.member.unreachable_since = datetime.now(UTC) - timedelta(seconds=10)
    leaves.leave(2000)
    assert await leaves.step()
    leaves.east.member.unreachable_since = datetime.now(UTC) - timedelta(seconds=901)
    assert not await leaves.step()
    assert leaves.released == [("east", ["configmap ns/settings"], 1)]


async def test_of_a_member_that_was_never_read_it_is_not_said_that_nothing_is_left(leaves: Leaves) -> None:
    leaves.east.informers["job"].synced.clear()
    leaves.east.member.reachable = False
    leaves.leave(901)
    assert not await leaves.step()
    assert leaves.released == [("east", [leaving.UNREAD], 1)]


async def test_claims_and_their_namespace_stay_and_are_named(leaves: Leaves) -> None:
    for kind, key in (("claim", ("ns", "data")), ("namespace", ("", "ns"))):
        meta = {"name": key[1], "namespace": key[0], "uid": kind}
        leaves.east.informers[kind].store[key] = {"metadata": meta}
    leaves.member.hold(CLAIMS, {"metadata": {"name": "data", "namespace": "ns"}})
    leaves.leave(901)
    assert not await leaves.step()
    assert leaves.released == [("east", ["claim ns/data", "namespace ns"], 2)]


async def test_claims_that_a_stateful_set_made_keep_their_namespace_too(leaves: Leaves) -> None:
    """The member's own controller makes them of the templates: no label says that they are ours."""
    leaves.east.informers["namespace"].store["", "ns"] = {"metadata": {"name": "ns", "uid": "ns"}}
    leaves.member.hold(CLAIMS, {"metadata": {"name": "data-db-0", "namespace": "ns"}})
    leaves.leave(901)
    assert not await leaves.step()
    assert not [call for call in leaves.member.calls if call[0].startswith("delete")]
    assert leaves.released == [("east", ["namespace ns"], 1)]


async def test_a_namespace_in_which_others_run_pods_is_left_behind(leaves: Leaves) -> None:
    leaves.east.informers["namespace"].store["", "ns"] = {"metadata": {"name": "ns", "uid": "ns"}}
    leaves.member.hold(PODS, {"metadata": {"name": "theirs", "namespace": "ns"}})
    leaves.leave(901)
    assert await leaves.step()
    assert not [call for call in leaves.member.calls if call[0].startswith("delete")]
    leaves.member.objects.clear()
    assert await leaves.step()
    assert leaves.member.calls[-1] == ("delete None", "namespaces", "ns")
    leaves.member.hold(PODS, {"metadata": {"name": "theirs", "namespace": "ns"}})
    leaves.leave(1801)
    assert await leaves.step(), "what was asked to go a moment ago, since work was there until then, has its time"
    leaves.made.world.departing["east"] -= timedelta(seconds=901)
    assert not await leaves.step()
    assert leaves.released == [("east", ["namespace ns"], 1)]


async def test_most_of_the_fleet_leaving_at_once_is_our_own_fault(leaves: Leaves) -> None:
    leaves.owned.objects.append({"metadata": {"name": "p", "labels": {ROUTED: "fleet-id"}}})
    leaves.made.member("west").member.leaving_since = datetime.now(UTC)
    leaves.leave(5000)
    assert await leaves.step()
    assert leaves.owned.objects


def test_a_finished_jobs_copy_goes_with_its_member_only() -> None:
    made = Made("east")
    status = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1}
    job = made.host("job", "a", spec={"template": {"spec": {"containers": []}}}, status=status)
    made.placed("job", job, {"east": 1})
    made.copy("job", job, "east", status=status)
    assert decide(made.world, "job", job, made.member("east")).action == "keep"
    made.world.departing["east"] = datetime.now(UTC)
    assert decide(made.world, "job", job, made.member("east")).action == "remove"


# Namespaces that the member had already.


async def test_a_deleted_namespace_waits_for_what_was_routed_into_the_members_own(leaves: Leaves) -> None:
    made, key = leaves.made, Key("namespace", "", "theirs")
    for other in ("west", "north"):
        made.member(other).member.reachable = True
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    meta = {"name": "theirs", "namespace": "", "deletionTimestamp": stamp, "finalizers": [NAMESPACE_FINALIZER]}
    made.host("namespace", "theirs", metadata=meta)
    mine = {"metadata": {"name": "p", "namespace": "theirs", "labels": {ROUTED: "fleet-id"}}}
    foreign = {"metadata": {"name": "q", "namespace": "theirs", "labels": {ROUTED: "another"}}}
    leaves.context.unread = lambda: True
    with pytest.raises(Again):
        await namespaces.reconcile_host(leaves.context, key)
    leaves.context.unread = lambda: False
    leaves.owned.objects = [mine, foreign]
    with pytest.raises(Again):
        await namespaces.reconcile_host(leaves.context, key)
    await namespaces.reconcile_member(leaves.context, leaves.east, key)
    assert leaves.owned.objects == [foreign]
    await namespaces.reconcile_host(leaves.context, key)
    assert ("patch", "namespaces", "theirs") in made.client.calls


async def test_what_was_routed_is_collected_when_its_namespace_went_while_the_member_was_away(leaves: Leaves) -> None:
    kept = {"metadata": {"name": "p", "namespace": "stays", "labels": {ROUTED: "fleet-id"}}}
    lost = {"metadata": {"name": "q", "namespace": "went", "labels": {ROUTED: "fleet-id"}}}
    leaves.made.host("namespace", "stays", metadata={"namespace": ""})
    leaves.owned.objects = [kept, lost]
    await namespaces.reconcile_routed(leaves.context, leaves.east)
    assert leaves.owned.objects == [kept]
