"""The sinker's controller, with a fleet and a service in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sdk_tools import until

from reclock import Seen, Worker
from reclock.testing import Done, FakeFleet, World
from services.common.errors import StatusError
from services.common.service import plain
from services.sinker.config import SinkerConfig
from services.sinker.copies import DIGEST, make_copy
from services.sinker.service import FINALIZER, SinkerService
from services.sinker.sink import Fleets, Sink
from services.sinker.spec import SINKS, Spec
from services.sinker.tally import Tally

CM = "v1/configmaps"
FLEET_ID = "fleet-1"


def a_sink(name: str = "s", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "reclock.dev/v1alpha1", "kind": "Sink",
        "metadata": {"name": name, "uid": f"uid-{name}", "generation": 1},
        "spec": {"version": "v1", "resource": "configmaps", "selector": {"matchLabels": {"sync": "yes"}}, **spec},
    }  # fmt: skip


def configmap(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "labels": {"sync": "yes"} if labels is None else labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


class Rig:
    """A Sink at work in a World."""

    def __init__(self, world: World, sink: Sink) -> None:
        self.world, self.sink = world, sink

    @property
    def fleet(self) -> FakeFleet:
        return self.world.fleet

    async def compare(self, cluster: str) -> Done:
        """As when a cluster joins."""
        return await self.world.reconcile("", "", cluster, source="cluster")

    async def copy(self, cluster: str, name: str) -> Done:
        """As when an original or a copy changes."""
        return await self.world.reconcile(cluster, "n", name, source="copy")

    def rows(self) -> dict[str, Any]:
        return {row["name"]: row for row in self.sink.tally.status()["clusters"]}


@asynccontextmanager
async def rig(*clusters: str, **spec: Any) -> AsyncIterator[Rig]:
    async with World(clusters=clusters) as world:
        fleets = Fleets(world.client, world.client, FLEET_ID, {one.name: one for one in await world.client.clusters()})
        decoded = Spec.of(a_sink(**spec))
        sink = Sink(decoded, fleets, Tally(decoded, []), 300.0)
        async with Worker(sink.controller(), fleet=world.client, reconciler=world.service.address, drain=5.0):
            yield Rig(world, sink)


async def test_copies_come_change_and_go() -> None:
    async with rig("east", "west") as it:
        it.fleet.host.put(configmap("a", k="1"))
        it.fleet.host.put(configmap("other", {}, k="1"))
        for cluster in ("east", "west"):
            assert (await it.compare(cluster)).requeue_after == 300.0
        made = it.fleet["east"].get(CM, "a", "n")
        assert made is not None and made["data"] == {"k": "1"} and it.fleet["west"].get(CM, "other", "n") is None
        assert made["metadata"]["labels"] == {"sync": "yes", "reclock.dev/sink": "s", "reclock.dev/sink-origin": FLEET_ID}
        it.fleet.host.put(configmap("a", k="2"))
        assert (await it.copy("east", "a")).ok
        assert it.fleet["east"].get(CM, "a", "n")["data"] == {"k": "2"}  # type: ignore[index]
        it.fleet.host.put(configmap("a", {}, k="2"))  # no longer chosen
        assert (await it.copy("east", "a")).ok
        assert it.fleet["east"].get(CM, "a", "n") is None
        it.fleet.host.delete(CM, "a", "n")
        assert (await it.copy("west", "a")).ok
        assert it.fleet["west"].list(CM) == []


async def test_an_original_makes_a_request_in_each_cluster_that_takes_it() -> None:
    clusters = {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["prod"]}]}
    async with rig("east", clusters=clusters, includeHost=True, **{"from": "east"}) as it:
        for name, tier in (("west", "prod"), ("south", "test")):
            it.fleet.join(name, tier=tier)
        infos = {one.name: one for one in await it.world.client.clusters()}
        it.sink._fleets.infos.update(infos)
        seen = Seen("east", configmap("a"), False)
        assert [(t.cluster, t.namespace, t.name, t.source) for t in it.sink.targets(seen)] == [
            ("west", "n", "a", "copy"), ("", "n", "a", "copy"),
        ]  # fmt: skip
        assert it.sink.targets(Seen("west", configmap("a"), False)) == []


async def test_what_is_equal_is_not_written_and_what_somebody_changed_is_put_right() -> None:
    async with rig("east") as it:
        it.fleet.host.put(configmap("a", k="1"))
        await it.compare("east")
        east = it.fleet["east"]
        # As a server's defaulting would: more than was asked for, in place before the next look by a new process.
        stored = east.get(CM, "a", "n")
        assert stored is not None
        east.put({**stored, "immutable": False})
        it.sink._writer._written.clear()
        before = len(east.writes)
        for _ in range(3):
            assert (await it.copy("east", "a")).ok and (await it.compare("east")).ok
        assert len(east.writes) == before
        east.put({**stored, "data": {"k": "mine"}})
        assert (await it.copy("east", "a")).ok
        assert east.get(CM, "a", "n")["data"] == {"k": "1"}  # type: ignore[index]
        assert len(east.writes) == before + 1


async def test_a_foreign_object_is_a_conflict_and_never_touched() -> None:
    async with rig("east", "west") as it:
        theirs = it.fleet["east"].put(configmap("a", {"own": "yes"}, k="theirs"))
        it.fleet.host.put(configmap("a", k="1"))
        it.fleet.host.put(configmap("b", k="1"))
        for cluster in ("east", "west"):
            assert (await it.compare(cluster)).ok
        assert it.fleet["east"].get(CM, "a", "n") == theirs
        row = it.rows()["east"]
        assert (row["state"], row["copies"], row["conflicts"]) == ("Conflict", 1, 1) and "n/a" in row["message"]
        assert it.rows()["west"]["state"] == "Synced"
        status = it.sink.tally.status()
        assert [(one["type"], one["status"]) for one in status["conditions"]] == [("Synced", "False"), ("Conflict", "True")]
        assert (status["summary"], status["copies"], status["conflicts"]) == ("1/2", 3, 1)
        assert [event["reason"] for event in it.sink.tally.events()] == ["Conflict"]
        await it.compare("east")
        assert it.sink.tally.events() == []  # told once
        it.fleet.host.delete(CM, "a", "n")
        assert (await it.copy("east", "a")).ok
        assert it.fleet["east"].get(CM, "a", "n") == theirs
        # Another Sink's copy is foreign, too; and once the name is free, it is taken.
        it.fleet.host.put(configmap("a", k="1"))
        it.fleet["east"].put(make_copy(configmap("a", k="1"), FLEET_ID, "another", ""))
        assert (await it.copy("east", "a")).ok and it.rows()["east"]["conflicts"] == 1
        it.fleet["east"].delete(CM, "a", "n")
        assert (await it.copy("east", "a")).ok and it.rows()["east"]["state"] == "Synced"


async def test_clusters_that_join_get_it_and_those_no_longer_chosen_lose_it() -> None:
    async with rig("east", clusters={"matchLabels": {"tier": "prod"}}) as it:
        it.fleet.host.put(configmap("a", k="1"))
        it.fleet.join("west", tier="prod")
        assert (await it.compare("west")).ok and (await it.compare("east")).ok
        assert it.fleet["west"].get(CM, "a", "n") is not None and it.fleet["east"].list(CM) == []
        assert set(it.rows()) == {"west"}
        it.fleet["west"].put(configmap("own", {}))
        it.fleet.join("west", tier="test")
        assert (await it.compare("west")).ok
        assert [one["metadata"]["name"] for one in it.fleet["west"].list(CM)] == ["own"]
        assert it.rows() == {}
        it.fleet.leave("west")
        assert (await it.compare("west")).ok


async def test_nothing_is_deleted_for_not_knowing() -> None:
    async with rig("east", "west", **{"from": "east"}) as it:
        it.fleet["east"].put(configmap("a", k="1"))
        assert (await it.compare("west")).ok
        it.fleet["east"].broken = 503
        assert not (await it.copy("west", "a")).ok and not (await it.compare("west")).ok
        assert it.fleet["west"].get(CM, "a", "n") is not None
        assert it.rows()["west"]["state"] == "Failed" and "does not answer" in it.rows()["west"]["message"]
        it.fleet.leave("east")
        assert not (await it.copy("west", "a")).ok
        assert it.fleet["west"].get(CM, "a", "n") is not None


@asynccontextmanager
async def at_work(world: World) -> AsyncIterator[SinkerService]:
    """The service, with a Sink `s` that has made its copy in `east`."""
    world.fleet.host.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})
    world.fleet.host.put(configmap("a", k="1"))
    kubeconfig = world.fleet.kubeconfig
    service = SinkerService(SinkerConfig(front_kubeconfig="x", reconciler_address=world.service.address, http_address=""))
    await service.start_with(kubeconfig, kubeconfig)
    try:
        await world.service.worker("sinker")
        world.fleet.host.put(a_sink(), resource=SINKS)
        assert (await world.reconcile("", "", "s", controller="sinker")).ok
        await world.service.worker("sink-s")
        assert (await world.reconcile("", "", "east", controller="sink-s", source="cluster")).ok
        await until(lambda: status(world).get("copies") == 1)
        yield service
    finally:
        await service.stop_intake()
        await service.tasks.close()
        await service.close()


def status(world: World) -> dict[str, Any]:
    return (world.fleet.host.get(SINKS, "s") or {}).get("status") or {}


async def test_the_service_runs_sinks_reports_and_empties_the_fleet_at_the_end() -> None:
    async with World(clusters=["east"]) as world, at_work(world):
        stored = world.fleet.host.get(SINKS, "s")
        assert stored is not None and stored["metadata"]["finalizers"] == [FINALIZER]
        world.fleet["east"].broken = 503
        world.fleet.host.delete(SINKS, "s")
        waits = await world.reconcile("", "", "s", controller="sinker")
        assert waits.requeue_after and world.fleet.host.get(SINKS, "s") is not None
        world.fleet["east"].broken = 0
        assert (await world.reconcile("", "", "s", controller="sinker")).ok
        assert world.fleet.host.get(SINKS, "s") is None and world.fleet["east"].list(CM) == []
        assert world.fleet.host.get(CM, "a", "n") is not None


async def test_a_sink_that_became_bad_says_so_and_can_be_deleted() -> None:
    async with World(clusters=["east"]) as world, at_work(world) as service:
        stored = world.fleet.host.get(SINKS, "s")
        assert stored is not None
        bad = {**stored, "spec": {**stored["spec"], "clusters": {"matchLabels": {"a b": "c"}}}}
        bad["metadata"] = {**stored["metadata"], "generation": 2}
        world.fleet.host.put(bad, resource=SINKS)
        assert (await world.reconcile("", "", "s", controller="sinker")).ok
        synced = next(one for one in status(world)["conditions"] if one["type"] == "Synced")
        assert synced["reason"] == "Refused" and service._running == {}, "nobody writes over that"
        assert len(world.fleet["east"].list(CM)) == 1
        world.fleet.host.delete(SINKS, "s")
        assert (await world.reconcile("", "", "s", controller="sinker")).ok
        assert world.fleet.host.get(SINKS, "s") is None and world.fleet["east"].list(CM) == []


async def test_a_process_that_has_just_started_lets_no_sink_go_before_its_copies() -> None:
    async with World(clusters=["east"]) as world, at_work(world) as service:
        world.fleet.host.delete(SINKS, "s")
        service.fleets.infos.clear()  # its watch of the clusters has not begun
        assert (await world.reconcile("", "", "s", controller="sinker")).ok
        assert world.fleet.host.get(SINKS, "s") is None and world.fleet["east"].list(CM) == []


async def test_a_sink_stays_for_a_cluster_that_leaves_with_its_copies() -> None:
    """The reconciler removes them there, by the types that Sinks name: one that is gone names none."""
    async with World(clusters=["east"]) as world, at_work(world):
        cluster = world.fleet.host.get("reclock.dev/v1alpha1/clusters", "east")
        assert cluster is not None
        leaving = {**cluster, "status": {**(cluster.get("status") or {}), "leavingSince": "2026-01-01T00:00:00Z"}}
        world.fleet.host.put(leaving, resource="reclock.dev/v1alpha1/clusters")
        world.fleet.host.delete(SINKS, "s")
        assert (await world.reconcile("", "", "s", controller="sinker")).requeue_after
        assert world.fleet.host.get(SINKS, "s") is not None


def test_a_copy_has_nothing_of_its_cluster() -> None:
    service = {
        "apiVersion": "v1", "kind": "Service", "status": {"loadBalancer": {}},
        "metadata": {"name": "s", "namespace": "n", "uid": "u", "resourceVersion": "3", "ownerReferences": [{}], "finalizers": ["f"]},
        "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80}]},
    }  # fmt: skip
    made = make_copy(service, FLEET_ID, "s", "")
    assert made["spec"] == {"ports": [{"port": 80}]} and "status" not in made
    assert set(made["metadata"]) == {"name", "namespace", "labels", "annotations"}
    other = make_copy({**service, "status": {}, "metadata": {**service["metadata"], "uid": "v"}}, FLEET_ID, "s", "")  # type: ignore[dict-item]
    assert other["metadata"]["annotations"][DIGEST] == made["metadata"]["annotations"][DIGEST]


def test_a_copy_is_not_what_controllers_of_its_cluster_made_of_it() -> None:
    """A copied revision is fought over with the other cluster's controller for ever; a bound claim's copy is Lost."""
    notes = {"deployment.kubernetes.io/revision": "3", "pv.kubernetes.io/bind-completed": "yes", "team": "a"}
    headless = {
        "kind": "Service", "metadata": {"name": "s", "annotations": notes},
        "spec": {"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv6"], "ports": [{"port": 80, "nodePort": 30080}]},
    }  # fmt: skip
    made = make_copy(headless, FLEET_ID, "s", "")
    assert made["spec"] == {"clusterIP": "None", "ports": [{"port": 80}]}
    assert {key for key in made["metadata"]["annotations"] if not key.startswith("reclock.dev/")} == {"team"}


def test_bad_settings_and_selectors_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="frontKubeconfig"):
        SinkerConfig()
    with pytest.raises(ValueError, match="resyncSeconds: 0"):
        SinkerConfig(front_kubeconfig="x", resync_seconds=0)
    assert plain(SinkerConfig(front_kubeconfig="x"))
    with pytest.raises(StatusError):
        Spec.of(a_sink(selector={"matchLabels": {"a b": "c"}}))
    with pytest.raises(StatusError, match="58 characters"):
        Spec.of(a_sink("s" * 59))
