"""Workloads on real clusters when something is wrong: members away, the reconciler killed, names taken, owners
that live on the host. Numbers are those of the behaviours in the placement design."""

from __future__ import annotations

import asyncio
import json

import pytest
from grpc import aio

from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc
from services.common.kube.resource import EVENTS, NAMESPACES, PODS, Resource
from services.reconciler.names import (
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    REPLICASETS,
    WORKLOADS,
)
from services.reconciler.workload_spec import new_workload
from tests.kube.conftest import Kubectl
from tests.kube.reconciler_rig import (
    FIXED,
    POLICIES,
    Obj,
    Rig,
    Sampler,
    home,
    host,
    job,
    ns,
    pin,
    rig,
    spread,
    spread_of,
    until,
)

__all__ = ["host", "ns", "rig"]


async def test_a_workload_without_an_owner_is_removed(rig: Rig, ns: str) -> None:
    await rig.clients[""].create(WORKLOADS, ns, _workload_for(ns))

    async def dropped() -> bool:
        return await rig.get("", WORKLOADS, ns, "job-nobody") is None

    await until(dropped, "it is removed, finalizer and all")


async def test_a_clash_that_the_scheduler_did_not_see_is_reported(rig: Rig, host: Kubectl, ns: str) -> None:
    """The reconciler's own guard: the name is taken after the scheduler has looked, before the copy is made."""
    await pin(rig, ns, "east")
    await rig.clients["east"].create(NAMESPACES, None, {"metadata": {"name": ns}})
    await rig.processes["reconciler"].stop()
    try:
        made = await rig.clients[""].create(JOBS, ns, job("late", ns, "600s"))
        workload = new_workload("job", made)
        await rig.clients[""].create(WORKLOADS, ns, workload)

        async def placed() -> bool:
            found = await rig.get("", WORKLOADS, ns, "job-late")
            return bool(((found or {}).get("status") or {}).get("placement"))

        await until(placed, "it is placed")
        foreign = await rig.clients["east"].create(JOBS, ns, job("late", ns, "600s"))
    finally:
        await rig.processes["reconciler"].start()
        await rig.processes["reconciler"].wait_ready()

    async def reported() -> bool:
        events = await rig.list("", EVENTS, ns)
        return any(e["reason"] == "Conflict" and e["involvedObject"]["name"] == "late" for e in events)

    await until(reported, "the Job's events name the clash")
    there = await rig.get("east", JOBS, ns, "late")
    assert there is not None and there["metadata"]["uid"] == foreign["metadata"]["uid"]
    await host("-n", ns, "delete", "job", "late")
    await rig.clients[""].delete(POLICIES, None, ns)
    await rig.clients["east"].delete(NAMESPACES, None, ns)

    async def removed() -> bool:
        return await rig.get("east", NAMESPACES, "", ns) is None

    await until(removed, "the namespace is gone", timeout=60)


def _workload_for(ns: str) -> Obj:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "nobody", "uid": "no-such-uid"}
    return {
        "apiVersion": "reclock.dev/v1alpha1", "kind": "Workload",
        "metadata": {"name": "job-nobody", "namespace": ns, "finalizers": ["reclock.dev/copies"]},
        "spec": {"owner": owner, "podSets": [{"name": "main", "count": 1, "requests": {}}], "mode": "Single"},
    }  # fmt: skip


async def test_an_operator_pauses_a_member_for_the_built_in_controllers(rig: Rig, ns: str) -> None:
    await pin(rig, ns, "east")
    async with aio.insecure_channel(rig.reconciler) as channel:
        queues = reconciler_pb2_grpc.QueueServiceStub(channel)

        async def pause(paused: bool) -> None:
            await queues.UpdateQueue(pb.UpdateQueueRequest(controller="reclock-workloads", cluster="east", paused=paused))

        async def waiting() -> list[pb.Queue]:
            rows = (await queues.ListQueues(pb.ListQueuesRequest(controller="reclock-workloads"))).queues
            return [row for row in rows if row.cluster == "east" and row.paused and row.depth]

        await pause(True)
        try:
            await rig.clients[""].create(JOBS, ns, job("held", ns, "600s"))
            await until(waiting, "its copy waits in the queue")
            assert await rig.get("east", JOBS, ns, "held") is None
        finally:
            await pause(False)

        async def copied() -> bool:
            return await rig.get("east", JOBS, ns, "held") is not None

        await until(copied, "it is copied")
        worker, = (await queues.ListQueues(pb.ListQueuesRequest(controller="reclock-garbage"))).controllers[0].workers
        assert worker.max_in_flight == 16
    await rig.clients[""].delete(POLICIES, None, ns)


async def test_behaviour_5_and_6_offline_member_is_collected_when_it_returns(
    rig: Rig, host: Kubectl, ns: str
) -> None:
    await pin(rig, ns, "west")
    await rig.clients[""].create(JOBS, ns, job("away", ns, "600s"))
    await host("-n", ns, "create", "deployment", "away", "--image=nginx", "--replicas=1")
    await host("-n", ns, "rollout", "status", "deployment/away", "--timeout=60s")
    assert await home(rig, ns, "away") == "west"
    apiserver = rig.fleet.processes["west-apiserver"]
    await apiserver.stop()
    try:
        await host("wait", "clusters.reclock.dev/west", "--for=condition=Reachable=False", "--timeout=30s")
        await host("-n", ns, "delete", "job", "away", timeout=30)
        await host("-n", ns, "delete", "deployment", "away", timeout=30)

        async def released() -> bool:
            return not [*await rig.list("", WORKLOADS, ns), *await rig.list("", REPLICASETS, ns)]

        await until(released, "nothing waits on the host")
    finally:
        await apiserver.start()
        await apiserver.wait_ready()

    async def collected() -> bool:
        found = [*await rig.list("west", JOBS, ns), *await rig.list("west", REPLICASETS, ns), *await rig.list("west", PODS, ns)]
        return not found

    await until(collected, "what was left is removed", timeout=60)
    await rig.clients[""].delete(POLICIES, None, ns)


async def test_counts_of_an_offline_member_stand(rig: Rig, host: Kubectl, ns: str) -> None:
    await host("-n", ns, "create", "deployment", "web", "--image=nginx", "--replicas=4")
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=60s")
    apiserver = rig.fleet.processes["west-apiserver"]
    await apiserver.stop()
    try:
        await host("wait", "clusters.reclock.dev/west", "--for=condition=Reachable=False", "--timeout=30s")
        await rig.processes["reconciler"].kill9()
        await rig.processes["reconciler"].start()
        await rig.processes["reconciler"].wait_ready()
        await host("-n", ns, "annotate", "deployment", "web", "poke=1")
        await asyncio.sleep(2)
        shown = await rig.get("", DEPLOYMENTS, ns, "web")
        assert shown is not None and shown["status"]["readyReplicas"] == 4
        assert len(await rig.list("east", PODS, ns)) == 2
    finally:
        await apiserver.start()
        await apiserver.wait_ready()
    await host("wait", "clusters.reclock.dev/west", "--for=condition=Reachable", "--timeout=60s")
    await host("-n", ns, "scale", "deployment/web", "--replicas=6")
    # The member's own controllers and nodes need a while to find back.
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=180s", timeout=200)
    # Who takes the two new pods depends on how soon the scheduler finds west ready; nobody loses any.
    found = await spread(rig, ns)
    assert sum(found.values()) == 6 and min(found.values()) >= 2, found


async def test_behaviour_29_kill_9_of_the_reconciler_midway(rig: Rig, host: Kubectl, ns: str) -> None:
    reconciler = rig.processes["reconciler"]
    await host("-n", ns, "create", "deployment", "web", "--image=nginx:1", "--replicas=4")
    strategy = json.dumps({"spec": {"strategy": {"rollingUpdate": FIXED}}})
    await host("-n", ns, "patch", "deployment", "web", "-p", strategy)
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=60s")

    async def churn() -> None:
        for number in range(12):
            await rig.clients[""].create(JOBS, ns, job(f"j{number}", ns))
            await asyncio.sleep(0.2)

    async with Sampler(rig, PODS, ns, "app=web") as seen:
        work = asyncio.create_task(churn())
        await host("-n", ns, "set", "image", "deployment/web", "nginx=nginx:2")
        for _ in range(3):
            await asyncio.sleep(0.7)
            await reconciler.kill9()
            await reconciler.start()
            await reconciler.wait_ready()
        await work
        await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=90s")
    assert seen.fewest_ready is not None and seen.fewest_ready >= 3 and seen.most_replicas == 4
    assert await spread_of(rig, ns, "app=web") == {"east": 2, "west": 2}
    await host("-n", ns, "wait", "--for=condition=complete", "job", "--all", "--timeout=90s")
    for number in range(12):
        placed = await rig.count(JOBS, ns, fieldSelector=f"metadata.name=j{number}")
        pods = await rig.count(PODS, ns, labelSelector=f"batch.kubernetes.io/job-name=j{number}")
        assert sum(placed.values()) == sum(pods.values()) == 1


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
async def test_objects_with_owners_on_the_host(rig: Rig, host: Kubectl, ns: str, cascade: str) -> None:
    """Owners of case 2: the member knows nothing of them, so Reclock collects."""
    await host("-n", ns, "create", "configmap", "owner")
    owner = await rig.get("", CONFIGMAPS, ns, "owner")
    assert owner is not None
    reference = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]
    await rig.clients["east"].create(NAMESPACES, None, {"metadata": {"name": ns}})
    account = Resource("", "v1", "serviceaccounts", "ServiceAccount")

    async def usable() -> bool:
        return await rig.get("east", account, ns, "default") is not None

    await until(usable, "the namespace can hold pods")
    pod = {
        "metadata": {
            "name": "owned", "labels": {"reclock.dev/host-owned": "true"},
            "annotations": {"reclock.dev/host-owners": json.dumps(reference)},
        },
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }  # fmt: skip
    await rig.clients["east"].create(PODS, ns, pod)
    await asyncio.sleep(3)
    assert await rig.get("east", PODS, ns, "owned") is not None
    await host("-n", ns, "delete", "configmap", "owner", f"--cascade={cascade}")

    async def settled() -> bool:
        found = await rig.get("east", PODS, ns, "owned")
        if cascade == "orphan":
            return found is not None and "reclock.dev/host-owned" not in (found["metadata"].get("labels") or {})
        return found is None

    await until(settled, "collected, or let go")
    await rig.clients["east"].delete(NAMESPACES, None, ns)

    async def removed() -> bool:
        return await rig.get("east", NAMESPACES, "", ns) is None

    await until(removed, "the namespace is gone", timeout=60)
