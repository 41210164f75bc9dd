"""What is followed on members while they, and what is aggregated, come and go."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from services.common.errors import MemberUnreachable
from services.common.fleet import Member
from services.common.kube.resource import Resource
from services.common.kube.shape import Shape
from services.common.tasks import Tasks
from services.reconciler.owned import OwnedObjects
from services.reconciler.sinks import Sinks
from services.reconciler.work.hub import Hub
from services.reconciler.work.replicas import Record, Replicas


class Away:
    """A cluster that does not answer."""

    name, label, shape = "east", "east", Shape()

    async def request(self, *args: Any, **how: Any) -> Any:
        raise MemberUnreachable("away")


async def test_a_type_that_is_aggregated_in_another_version_is_followed_in_that() -> None:
    tasks = Tasks("east")
    owned = OwnedObjects(Away(), tasks, lambda *_: None)  # type: ignore[arg-type]
    old, new = (Resource("example.com", version, "widgets", "Widget") for version in ("v1beta1", "v1"))
    owned.apply([old])
    first = owned.informers[old.key]
    owned.apply([old])
    assert owned.informers[old.key] is first
    owned.apply([new])
    assert owned.informers[new.key].resource == new
    running = owned._running[new.key]
    await asyncio.sleep(0.01)
    assert not running.done() and len(tasks) == 1
    await tasks.close()


async def test_a_cluster_that_is_back_before_anybody_looked_is_read_by_its_new_client() -> None:
    fleet: Any = SimpleNamespace(members={}, synced=asyncio.Event())
    hub = Hub(fleet, Away(), 1.0, "me", lambda name, error: None)  # type: ignore[arg-type]
    told: list[str] = []
    hub.controllers["c"] = SimpleNamespace(  # type: ignore[assignment]
        parts={}, spec=SimpleNamespace(leaving=False), wants=lambda cluster, labels: True, replay=lambda cluster: None,
        engage=lambda engaged: told.append(f"engage {engaged.incarnation}"),
        disengage=lambda cluster, reason: told.append("disengage"),
    )  # fmt: skip
    for uid in ("one", "two"):
        fleet.members["east"] = Member("east", uid=uid, client=Away())  # type: ignore[arg-type]
        if uid == "one":
            hub.gained("east", 7, 0.0)
        await hub.engaged(fleet.members["east"])
    assert told == ["engage one", "disengage", "engage two"]
    assert hub.engaged_here["east"].client is fleet.members["east"].client
    assert hub.engaged_here["east"].fence == 7


async def test_a_cluster_that_left_while_it_was_released_can_be_released_again() -> None:
    replicas: Any = None

    class Owner:
        async def release(self, cluster: str, limit: float) -> bool:
            replicas._fences.pop(cluster)  # it leaves the fleet meanwhile
            return True

    replicas = Replicas(None, "/p", "me", lambda: Record("", 1, ""), Owner(), ttl=5, lease=1)  # type: ignore[arg-type]
    replicas._fences["east"] = 1
    replicas._releasing.add("east")
    await replicas._release("east")
    assert replicas._releasing == set()


async def test_a_replica_whose_lease_ends_while_it_stops_still_stops() -> None:
    replicas: Any = None
    lost: list[str] = []

    class Owner:
        async def release(self, cluster: str, limit: float) -> bool:
            return True

        def lost(self, cluster: str) -> None:
            lost.append(cluster)

    replicas = Replicas(None, "/p", "me", lambda: Record("", 1, ""), Owner(), ttl=5, lease=1)  # type: ignore[arg-type]
    replicas._fences.update(east=1, west=2)

    async def give_up(cluster: str, fence: int, *, clean: bool) -> None:
        replicas._lapse()

    replicas._give_up = give_up
    await replicas.stop()
    assert lost == ["east", "west"] and replicas._fences == {}


def test_what_sinks_copied_is_looked_for_in_every_version_that_they_name() -> None:
    """A member that leaves may serve but one of them: what it lacks has nothing, and the other one's copies would stay."""
    sinks = Sinks(Away())  # type: ignore[arg-type]
    for name, version in (("a", "v1beta1"), ("b", "v1"), ("c", "v1")):
        spec = {"group": "example.com", "version": version, "resource": "widgets"}
        sinks.informer.store["", name] = {"metadata": {"name": name}, "spec": spec}
    assert [resource.version for resource in sinks.resources()] == ["v1beta1", "v1"]
