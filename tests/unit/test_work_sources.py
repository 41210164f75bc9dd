"""Sources, mappings, predicates, indexes; clusters that join, change and leave; the live view of the queues."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.reconciler.work import paths
from services.reconciler.work.mapping import Naming, Target, target_of
from tests.integration.work_rig import Worker, for_configmaps, rig, violations


def configmaps(**fields: Any) -> pb.Source:
    return pb.Source(version="v1", resource="configmaps", **fields)


FOR = configmaps(for_object=pb.ForObject())
PODS_OF = {"version": "v1", "resource": "pods"}


def keys(worker: Worker) -> set[tuple[str, str, str]]:
    return {(r.cluster, r.namespace, r.name) for r in worker.of("request")}


async def drained(worker: Worker, seconds: float = 0.3) -> set[tuple[str, str, str]]:
    """What has come after a while, all of it answered."""
    await asyncio.sleep(seconds)
    found = keys(worker)
    for request in worker.of("request"):
        await worker.done(request)
    worker.seen.clear()
    return found


@pytest.mark.parametrize(("text", "values"), [
    ("spec.nodeName", ["n1"]), ("spec.volumes[*].configMap.name", ["a", "b"]), ("metadata.labels['x.y/z']", ["v"]),
    ("spec.number", ["3"]), ("spec.yes", ["true"]), ("spec.nothing.here", []), ("metadata.labels[*]", ["v"]), ("spec", []),
])  # fmt: skip
def test_paths(text: str, values: list[str]) -> None:
    obj = {
        "metadata": {"labels": {"x.y/z": "v"}},
        "spec": {"nodeName": "n1", "number": 3, "yes": True, "volumes": [{"configMap": {"name": "a"}}, {}, {"configMap": {"name": "b"}}]},
    }
    assert paths.parse(text).values(obj) == values


@pytest.mark.parametrize("text", ["", ".a", "a..b", "a[0]", "a.[*]x", "a b"])
def test_bad_paths(text: str) -> None:
    with pytest.raises(ValueError, match=r"empty|not understood"):
        paths.parse(text)


def test_keys_come_back_as_they_were() -> None:
    for target in (Target("c", "ns", "n"), Target("", "", "system:node", "src"), Target("c", "ns", "a.b")):
        assert target_of(target.cluster, target.key) == target


def test_names_that_are_none_make_no_requests() -> None:
    obj = {"metadata": {"namespace": "own", "name": "x"}}
    naming = Naming()
    found = list(naming.targets("c", obj, ["a", " b ", "other/c", "", "..", "a/b/c", "x y", "n/"]))
    assert found == [Target("c", "own", "a"), Target("c", "own", "b"), Target("c", "other", "c")]
    assert list(Naming(True, True).targets("c", obj, ["a", "n/a"])) == [Target("", "", "a")]


async def test_owners_labels_annotations_and_fields_map_to_requests() -> None:
    async with rig("east") as it:
        east = it.clusters.clusters["east"]
        naming = pb.Naming()
        worker = it.worker(for_configmaps(scope=pb.SCOPE_ALL, sources=[
            configmaps(for_object=pb.ForObject(), scope=pb.SCOPE_MEMBERS),
            pb.Source(**PODS_OF, by_owner=pb.ByOwner(kind="ConfigMap"), scope=pb.SCOPE_MEMBERS),
            pb.Source(**PODS_OF, by_label=pb.ByLabel(key="of", naming=pb.Naming(to_host=True)), scope=pb.SCOPE_MEMBERS),
            pb.Source(**PODS_OF, by_annotation=pb.ByAnnotation(key="uses", naming=naming), scope=pb.SCOPE_MEMBERS),
            pb.Source(**PODS_OF, by_field=pb.ByField(path="spec.volumes[*].configMap.name", naming=naming), scope=pb.SCOPE_MEMBERS),
        ]))  # fmt: skip
        await worker.next("registered")
        owners = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "u1", "controller": True},
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "second", "uid": "u2"},
            {"apiVersion": "x/v1", "kind": "ConfigMap", "name": "other-group", "uid": "u3", "controller": True},
        ]
        east.put("pods", "ns", "owned", ownerReferences=owners)
        assert await drained(worker) == {("east", "ns", "owner")}
        east.put("pods", "ns", "labelled", labels={"of": "thing"})
        assert await drained(worker) == {("", "ns", "thing")}
        east.put("pods", "ns", "labelled", labels={"of": "other"})
        assert await drained(worker) == {("", "ns", "thing"), ("", "ns", "other")}
        east.put("pods", "ns", "annotated", annotations={"uses": "a, far/b"})
        assert await drained(worker) == {("east", "ns", "a"), ("east", "far", "b")}
        east.put("pods", "ns", "mounts", spec={"volumes": [{"configMap": {"name": "v1"}}, {"configMap": {"name": "v2"}}]})
        assert await drained(worker) == {("east", "ns", "v1"), ("east", "ns", "v2")}
        east.remove("pods", "ns", "mounts")
        assert await drained(worker) == {("east", "ns", "v1"), ("east", "ns", "v2")}
        await worker.close()


async def test_predicates_and_selectors_apply_at_the_source() -> None:
    async with rig("east") as it:
        east = it.clusters.clusters["east"]
        worker = it.worker(for_configmaps(sources=[configmaps(
            for_object=pb.ForObject(), label_selector="watched=yes", namespaces=["a", "b"],
            predicates=pb.Predicates(changes=[pb.CHANGE_GENERATION, pb.CHANGE_LABELS], ignore_deleted=True),
        )]))  # fmt: skip
        await worker.next("registered")
        await asyncio.sleep(0.2)
        assert {query.get("labelSelector") for query in east.queries if "limit" in query and query["limit"] == "500"} == {"watched=yes"}
        labels = {"watched": "yes"}
        east.put("configmaps", "a", "one", labels=labels)
        east.put("configmaps", "b", "two", labels=labels)
        east.put("configmaps", "c", "elsewhere", labels=labels)
        east.put("configmaps", "a", "unlabelled")
        assert await drained(worker) == {("east", "a", "one"), ("east", "b", "two")}
        east.put("configmaps", "a", "one", labels=labels, annotations={"x": "y"})
        assert await drained(worker) == set()
        east.put("configmaps", "a", "one", labels={**labels, "more": "1"})
        assert await drained(worker) == {("east", "a", "one")}
        east.put("configmaps", "a", "one", labels={**labels, "more": "1"}, data={"k": "v"})
        assert await drained(worker) == {("east", "a", "one")}
        east.put("configmaps", "a", "one", labels={**labels, "more": "1"}, data={"k": "v"}, deletionTimestamp="now")
        assert await drained(worker) == {("east", "a", "one")}
        east.remove("configmaps", "a", "one")
        assert await drained(worker) == set()
        await worker.close()


async def test_several_types_are_told_apart_by_their_source() -> None:
    async with rig("east") as it:
        east = it.clusters.clusters["east"]
        east.put("configmaps", "a", "same")
        east.put("pods", "a", "same")
        worker = it.worker(for_configmaps(sources=[
            configmaps(name="maps", for_object=pb.ForObject()), pb.Source(**PODS_OF, name="pods", for_object=pb.ForObject()),
        ]))  # fmt: skip
        requests = await worker.requests(2)
        assert {(r.source, r.name) for r in requests} == {("maps", "same"), ("pods", "same")}
        await worker.close()


async def test_feeds_are_shared_by_controllers() -> None:
    async with rig("east") as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        first, second = it.worker(for_configmaps("one")), it.worker(for_configmaps("two"))
        assert [r.name for r in await first.requests(1)] == [r.name for r in await second.requests(1)] == ["one"]
        assert it.work.parts.hub is not None and len(it.work.parts.hub.feeds) == 1
        await first.close()
        await second.close()


async def test_a_worker_maps_what_only_it_knows_and_another_is_asked_when_it_does_not() -> None:
    async with rig("east", "west", lease=1) as it:
        source = pb.Source(**PODS_OF, name="pods", by_worker=pb.ByWorker())
        register = for_configmaps(sources=[FOR, source])
        worker = it.worker(register)
        await it.synced()
        it.clusters.clusters["east"].put("pods", "ns", "pod", labels={"k": "v"})
        asked = await worker.next("map")
        assert asked.source == "pods" and asked.cluster == "east" and not asked.deleted
        assert b'"labels":{"k":"v"}' in asked.object and b"spec" not in asked.object
        await worker.say(mapped=pb.Mapped(id=asked.id, keys=[
            pb.MappedKey(namespace="ns", name="here", priority=5), pb.MappedKey(cluster="west", name="there"),
            pb.MappedKey(name="bad/name"),
        ]))  # fmt: skip
        requests = await worker.requests(2)
        assert {(r.cluster, r.namespace, r.name, r.priority) for r in requests} == {("east", "ns", "here", 5), ("west", "", "there", 0)}
        assert (await worker.next("problem")).field == "mapped.keys[2].name"
        await worker.say(mapped=pb.Mapped(id=asked.id))
        assert (await worker.next("problem", 2)).code == pb.PROBLEM_CODE_UNKNOWN_TOKEN
        # One that is silent, then gone: the other one is asked.
        it.clusters.clusters["east"].put("pods", "ns", "pod", labels={"k": "w"})
        await worker.next("map", 2)
        other = it.worker(register)
        await other.next("registered")
        worker.die()
        again = await other.next("map")
        assert b'"w"' in again.object
        await other.close()


async def test_clusters_join_change_and_leave() -> None:
    async with rig("east", lease=60) as it:
        it.clusters.add("west").put("configmaps", "a", "west-one")
        worker = it.worker(for_configmaps(cluster_selector="tier!=off"))
        await worker.next("registered")
        await it.join("west", tier="on")
        [request] = await worker.requests(1)
        assert (request.cluster, request.name) == ("west", "west-one")
        await it.fleet.change("west", labels={"tier": "off"})
        cancelled = await worker.next("cancelled")
        assert (cancelled.token, cancelled.reason) == (request.token, pb.CANCEL_REASON_CLUSTER_LEFT)
        await worker.done(request)
        await it.fleet.change("west", labels={"tier": "on"})
        await worker.requests(2)
        await it.fleet.leave("west")
        await worker.next("cancelled", 2)
        await worker.done(worker.of("request")[1], error="too late to matter")
        await asyncio.sleep(0.2)
        assert not worker.of("problem") and len(worker.of("request")) == 2
        await worker.close()


async def test_the_key_of_a_cluster_that_returns_waits_for_its_running_handler() -> None:
    async with rig("east", lease=2) as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        [request] = await worker.requests(1)
        await it.fleet.leave("east")
        await worker.next("cancelled")
        await it.join("east")
        await asyncio.sleep(0.5)
        assert len(worker.of("request")) == 1
        await worker.done(request)
        assert (await worker.requests(2))[1].name == "one"
        await worker.close()


async def test_another_cluster_under_the_same_name_starts_over() -> None:
    async with rig("east", lease=60) as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        [request] = await worker.requests(1)
        await worker.done(request)
        await it.fleet.change("east", uid="another")
        await worker.requests(2)
        await worker.close()


async def test_clusters_are_a_source() -> None:
    async with rig("east") as it:
        source = pb.Source(group="reclock.dev", version="v1alpha1", resource="clusters", for_object=pb.ForObject())
        worker = it.worker(for_configmaps(scope=pb.SCOPE_HOST, sources=[source]))
        [first] = await worker.requests(1)
        assert (first.cluster, first.namespace, first.name, first.priority) == ("", "", "east", -100)
        await worker.done(first)
        await it.join("west")
        assert (await worker.requests(2))[1].name == "west"
        await worker.done(worker.of("request")[1])
        await it.fleet.change("west", labels={"a": "b"})
        await worker.done((await worker.requests(3))[2])
        await it.fleet.leave("west")
        assert (await worker.requests(4))[3].name == "west"
        await worker.close()


async def test_a_member_with_10_000_waiting_requests_leaves_within_a_second() -> None:
    async with rig("east", lease=60) as it:
        east = it.clusters.add("west")
        for number in range(10_000):
            east.put("configmaps", f"ns{number % 50}", f"c{number}")
        await it.join("west")
        worker = it.worker(for_configmaps(max_in_flight=1))
        await worker.requests(1)
        hub = it.work.parts.hub
        assert hub is not None
        controller = hub.controllers["c"]
        await worker.until(lambda: len(controller.queue) >= 9_999)
        before = controller.queue.__sizeof__()
        began = time.monotonic()
        await it.fleet.leave("west")
        await worker.next("cancelled")
        assert time.monotonic() - began < 1.0
        assert len(controller.queue) == 0 and "west" not in {row.cluster for row in controller.stats()}
        assert controller.queue.__sizeof__() < before / 4
        assert len(hub.feeds) == 1 and not len(controller.indexes)
        await worker.close()


async def test_indexes_answer_over_all_clusters_those_that_join_later_too() -> None:
    async with rig("east") as it:
        def put(cluster: str) -> None:
            owner = {"apiVersion": "v1", "kind": "X", "name": "o", "uid": "owner-uid"}
            it.clusters.clusters[cluster].put("configmaps", "a", "one", labels={"app": "web"}, ownerReferences=[owner], data={"k": "v"})

        put("east")
        register = for_configmaps(indexes=[pb.Index(name="app", label="app"), pb.Index(name="k", path="data.k")])
        worker = it.worker(register)
        await worker.requests(1)
        it.clusters.add("west")
        put("west")
        await it.join("west")
        await worker.requests(2)

        async def ask(**fields: Any) -> pb.QueryIndexResponse:
            answer: pb.QueryIndexResponse = await it.stub.QueryIndex(pb.QueryIndexRequest(controller="c", **fields))
            return answer

        for index, value in (("app", "web"), ("k", "v"), ("owner", "owner-uid")):
            answer = await ask(index=index, value=value)
            assert [(o.cluster, o.namespace, o.name) for o in answer.objects] == [("east", "a", "one"), ("west", "a", "one")]
        page = await ask(index="app", value="web", limit=1)
        assert [o.cluster for o in page.objects] == ["east"] and page.next_page_token
        page = await ask(index="app", value="web", limit=1, page_token=page.next_page_token)
        assert [o.cluster for o in page.objects] == ["west"] and not page.next_page_token
        assert [o.cluster for o in (await ask(index="app", value="web", cluster="west")).objects] == ["west"]
        it.clusters.clusters["east"].put("configmaps", "a", "one", labels={"app": "db"})
        await worker.until(lambda: it.work.parts.hub is not None and not it.work.parts.hub.controllers["c"].indexes.find("app", "web")[1:])
        assert [o.cluster for o in (await ask(index="app", value="web")).objects] == ["west"]
        await it.fleet.leave("west")
        assert not (await ask(index="app", value="web")).objects
        for fields, code in (
            ({"index": "none", "value": "x"}, grpc.StatusCode.NOT_FOUND),
            ({"index": "app", "value": "x", "page_token": "?"}, grpc.StatusCode.INVALID_ARGUMENT),
            ({"index": "app", "value": "x", "limit": -1}, grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await ask(**fields)
            assert raised.value.code() == code
        await worker.close()


async def test_queues_are_shown_and_steered_at_once() -> None:
    async with rig("east", "west", lease=60) as it:
        worker = it.worker(for_configmaps(max_in_flight=8, worker="w", weights={"west": 3}))
        await worker.next("registered")
        rows = {row.cluster: row for row in (await it.queues.ListQueues(pb.ListQueuesRequest())).queues}
        assert {name: (row.weight, row.cap, row.replica) for name, row in rows.items()} == {"east": (1, 2, "r1"), "west": (3, 2, "r1")}
        await it.queues.UpdateQueue(pb.UpdateQueueRequest(controller="c", cluster="east", weight=2.5, cap=5, paused=True))
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        await asyncio.sleep(0.3)
        assert not worker.of("request")
        watch = it.queues.WatchQueues(pb.WatchQueuesRequest(controller="c", interval={"nanos": 100_000_000}))
        seen = await watch.read()
        east = next(row for row in seen.queues if row.cluster == "east")
        assert (east.weight, east.cap, east.paused, east.depth, east.synced) == (2.5, 5, True, 1, True)
        assert [(w.name, w.max_in_flight, w.in_flight) for w in seen.controllers[0].workers] == [("w", 8, 0)]
        await it.queues.UpdateQueue(pb.UpdateQueueRequest(cluster="east", paused=False))
        await worker.requests(1)
        async with asyncio.timeout(5):
            while (seen := await watch.read()).controllers[0].workers[0].in_flight != 1:
                pass
            [east, west] = seen.queues
            assert east.wait_p50.ToTimedelta().total_seconds() >= 0.2 and not east.HasField("work_p50") and not west.HasField("wait_p99")
            await worker.done(worker.of("request")[0])
            while not (seen := await watch.read()).queues[0].HasField("work_p99"):
                pass
        watch.cancel()
        # What an operator set outlives another registration.
        other = it.worker(for_configmaps(max_in_flight=8))
        await other.next("registered")
        rows = {row.cluster: row for row in (await it.queues.ListQueues(pb.ListQueuesRequest())).queues}
        assert (rows["east"].cap, rows["west"].cap) == (5, 4)
        await worker.close()
        await other.close()


@pytest.mark.parametrize(("fields", "code"), [
    ({"cluster": "nowhere", "cap": 1}, grpc.StatusCode.NOT_FOUND),
    ({"controller": "other", "cluster": "east", "cap": 1}, grpc.StatusCode.NOT_FOUND),
    ({"cluster": "east", "cap": 0}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"cluster": "east", "weight": 0}, grpc.StatusCode.INVALID_ARGUMENT),
    ({"cluster": "east", "weight": float("nan"), "cap": 5}, grpc.StatusCode.INVALID_ARGUMENT),
])  # fmt: skip
async def test_bad_updates_change_nothing(fields: dict[str, Any], code: grpc.StatusCode) -> None:
    async with rig("east") as it:
        worker = it.worker(for_configmaps())
        await worker.next("registered")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await it.queues.UpdateQueue(pb.UpdateQueueRequest(**fields))
        assert raised.value.code() == code
        if "weight" in fields:
            assert "1e-06 to 1e+06" in violations(raised.value)["weight"]
        [row] = (await it.queues.ListQueues(pb.ListQueuesRequest())).queues
        assert (row.weight, row.cap) == (1, 25)
        await worker.close()
