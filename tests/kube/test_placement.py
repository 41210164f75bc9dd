"""Placement on real clusters: a manager, a worker beside east (west is read by the manager), and the reconciler.

Numbers are those of the behaviours in the placement design; more of them, with a clock that can be moved, are in
tests/unit/test_scheduler_behaviours.py.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio
import yaml

from deploy.local.fleet import Fleet
from deploy.local.probes import http_ready
from deploy.local.process import Process
from reclock.scheduler.v1 import scheduler_pb2 as pb
from reclock.scheduler.v1 import scheduler_pb2_grpc
from services.common.kube.resource import CLUSTERS, NAMESPACES, PODS
from services.scheduler.feed import KINDS
from services.scheduler.policy import POLICIES
from services.scheduler.workload import WORKLOADS
from tests.kube.conftest import Kubectl
from tests.kube.reconciler_rig import CHECKOUT, Obj, Rig

JOBS = KINDS["Job"]
MAINTENANCE = "reclock.dev/maintenance"


class PlacementRig(Rig):
    """Discovery, reconciler and both roles of the scheduler."""

    scheduler = ""

    def _service(self, name: str, grpc: int, config: Obj) -> None:
        if name == "scheduler":
            worker, http = self.ports.take(), self.ports.take()
            self.scheduler = f"127.0.0.1:{grpc}"
            config = {**config, "workers": {"east": f"127.0.0.1:{worker}"}, "leaseSeconds": 3}
            path = self.directory / "worker.yaml"
            path.write_text(yaml.safe_dump({
                "role": "worker", "cluster": "east", "grpcAddress": f"127.0.0.1:{worker}",
                "httpAddress": f"127.0.0.1:{http}",
                "member": {"kubeconfig": str(self.fleet.members["east"].kubeconfig)},
            }))  # fmt: skip
            self.processes["worker"] = Process(
                "worker", [sys.executable, "-m", "services.scheduler", "--config", str(path)],
                log=self.directory / "worker.log", cwd=CHECKOUT, ready=http_ready(f"http://127.0.0.1:{http}/readyz"),
            )  # fmt: skip
        super()._service(name, grpc, config)

    async def workload(self, ns: str, name: str) -> Obj:
        """The status of a Workload; empty when there is none."""
        found = await self.get("", WORKLOADS, ns, name)
        return (found or {}).get("status") or {}

    async def placed(self, ns: str, name: str) -> dict[str, int] | None:
        """Cluster -> replicas."""
        placement = (await self.workload(ns, name)).get("placement")
        return None if placement is None else {c["name"]: c["replicas"] for c in placement["clusters"]}

    async def condition(self, ns: str, name: str, kind: str) -> Obj:
        """One condition of a Workload."""
        conditions = (await self.workload(ns, name)).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rig(clusters: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PlacementRig]:
    async with PlacementRig(clusters, tmp_path_factory.mktemp("placement")).running() as running:
        assert isinstance(running, PlacementRig)
        yield running


@pytest.fixture
def host(rig: PlacementRig, kubectl: Callable[..., Kubectl]) -> Kubectl:
    return kubectl(rig.fleet.host.kubeconfig)


@pytest_asyncio.fixture(loop_scope="session")
async def ns(rig: PlacementRig, host: Kubectl, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A namespace for one test, and all its policies; nothing of it may be left anywhere afterwards."""
    # Another one for each try: what a failed one left may still be on its way out.
    name = f"{request.node.name.replace('_', '-').split('[')[0][:50].strip('-')}-{secrets.token_hex(2)}"
    await host("create", "namespace", name)
    yield name
    await host("delete", "namespace", name, timeout=120)
    await host("delete", "placementpolicy", name, "--ignore-not-found")

    async def gone() -> bool:  # a member's own namespace, which the test deleted itself, takes its time
        return all([await rig.get(cluster, NAMESPACES, "", name) is None for cluster in rig.clients])

    await until(gone, f"namespace {name} is left nowhere")


async def until(condition: Callable[[], Awaitable[Any]], what: str, timeout: float = 40) -> Any:
    """Wait until the condition holds and return what it gave."""
    try:
        async with asyncio.timeout(timeout):
            while not (value := await condition()):  # noqa: ASYNC110 (several clusters are asked)
                await asyncio.sleep(0.1)
            return value
    except TimeoutError:
        raise AssertionError(f"not within {timeout} s: {what}") from None


async def policy(rig: PlacementRig, ns: str, **spec: Any) -> None:
    """Make the namespace's own policy, which beats all others."""
    body = {"priority": 100, "resourceSelectors": [{"namespace": ns}], **spec}
    await rig.clients[""].create(POLICIES, None, {
        "apiVersion": "reclock.dev/v1alpha1", "kind": "PlacementPolicy", "metadata": {"name": ns}, "spec": body,
    })  # fmt: skip
    # The scheduler reads policies by a watch of its own.
    await asyncio.sleep(0.5)


def job(name: str, ns: str, run_time: str = "600s", cpu: str = "100m", **spec: Any) -> Obj:
    container = {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    template = {
        "metadata": {"annotations": {"fleet.reclock.dev/run-time": run_time}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": ns},
            "spec": {"template": template, **spec}}  # fmt: skip


async def create_job(rig: PlacementRig, name: str, ns: str, **fields: Any) -> str:
    """Create a Job and return the member that it was placed on."""
    await rig.clients[""].create(JOBS, ns, job(name, ns, **fields))
    placed: dict[str, int] = await until(lambda: rig.placed(ns, f"job-{name}"), f"placement of {name}")
    assert len(placed) == 1
    return next(iter(placed))


async def is_running(rig: PlacementRig, member: str, ns: str, name: str) -> bool:
    pods = await rig.list(member, PODS, ns, labelSelector=f"batch.kubernetes.io/job-name={name}")
    return any(pod["status"].get("phase") == "Running" for pod in pods)


def other(member: str) -> str:
    return "west" if member == "east" else "east"


async def reachable(rig: PlacementRig, member: str) -> bool:
    found = await rig.get("", CLUSTERS, "", member)
    conditions = ((found or {}).get("status") or {}).get("conditions") or []
    return any(c["type"] == "Reachable" and c["status"] == "True" for c in conditions)


async def noticed_as_lost(rig: PlacementRig, member: str) -> None:
    async def noticed() -> bool:
        return not await reachable(rig, member)

    await until(noticed, f"{member} noticed as lost")


async def hang(rig: PlacementRig, member: str) -> None:
    """Stop a member's apiserver in its tracks: it takes connections and never answers."""
    rig.fleet.processes[f"{member}-apiserver"].pause()
    await noticed_as_lost(rig, member)


async def wake(rig: PlacementRig, member: str) -> None:
    rig.fleet.processes[f"{member}-apiserver"].resume()
    await until(lambda: reachable(rig, member), f"{member} back")


async def kill(rig: PlacementRig, member: str) -> None:
    """Kill a member's apiserver and wait until discovery has noticed."""
    await rig.fleet.processes[f"{member}-apiserver"].kill9()
    await noticed_as_lost(rig, member)


async def restart(rig: PlacementRig, member: str) -> None:
    await rig.fleet.processes[f"{member}-apiserver"].restart()
    await until(lambda: reachable(rig, member), f"{member} back")


async def test_behaviour_02_one_cluster_admits_and_runs_it(rig: PlacementRig, ns: str) -> None:
    home = await create_job(rig, "a", ns)
    admitted = await rig.condition(ns, "job-a", "Admitted")
    assert (admitted["status"], admitted["message"]) == ("True", f'Admitted on "{home}"')
    await until(lambda: is_running(rig, home, ns, "a"), "its pod runs")
    assert await rig.list(other(home), JOBS, ns) == []


async def test_behaviour_03_finished_keeps_its_copy_until_the_job_goes(
    rig: PlacementRig, ns: str, host: Kubectl
) -> None:
    home = await create_job(rig, "a", ns, run_time="1s")
    await host("-n", ns, "wait", "--for=condition=complete", "job/a", "--timeout=60s")

    async def finished() -> bool:
        return (await rig.condition(ns, "job-a", "Finished")).get("status") == "True"

    await until(finished, "Workload Finished")
    assert len(await rig.list(home, JOBS, ns)) == 1
    assert len(await rig.list(home, PODS, ns)) == 1
    await host("-n", ns, "delete", "job", "a")
    assert await rig.list(home, JOBS, ns) == []


async def test_behaviour_04_suspended_and_resumed_where_it_was(rig: PlacementRig, ns: str, host: Kubectl) -> None:
    home = await create_job(rig, "a", ns)
    await until(lambda: is_running(rig, home, ns, "a"), "its pod runs")
    await host("-n", ns, "patch", "job", "a", "-p", '{"spec":{"suspend":true}}')

    async def remembered() -> bool:
        status = await rig.workload(ns, "job-a")
        return "placement" not in status and bool(status.get("lastPlacement"))

    await until(remembered, "placement cleared and remembered")
    await host("-n", ns, "wait", "--for=condition=suspended", "job/a", "--timeout=30s")
    await host("-n", ns, "patch", "job", "a", "-p", '{"spec":{"suspend":false}}')
    assert await until(lambda: rig.placed(ns, "job-a"), "placed again") == {home: 1}
    await until(lambda: is_running(rig, home, ns, "a"), "its pod runs again")


async def test_behaviours_05_06_deleted_while_its_winner_is_away(rig: PlacementRig, ns: str, host: Kubectl) -> None:
    home = await create_job(rig, "a", ns)
    await until(lambda: is_running(rig, home, ns, "a"), "its pod runs")
    await kill(rig, home)
    await host("-n", ns, "delete", "job", "a", "--wait=false")
    await restart(rig, home)

    async def gone() -> bool:
        left = [*await rig.list(home, JOBS, ns), *await rig.list("", JOBS, ns), *await rig.list("", WORKLOADS, ns)]
        return not left

    await until(gone, "Job, copy and Workload are gone", 60)


async def test_behaviours_07_09_a_brief_loss_moves_nothing_a_long_one_does(rig: PlacementRig, ns: str) -> None:
    await policy(rig, ns, type="Single", workerLostTimeout=15)
    home = await create_job(rig, "a", ns)
    await until(lambda: is_running(rig, home, ns, "a"), "its pod runs")
    before = (await rig.workload(ns, "job-a"))["placement"]
    await hang(rig, home)
    await wake(rig, home)
    assert (await rig.workload(ns, "job-a"))["placement"] == before

    await hang(rig, home)
    try:
        # The time-out counts from the disconnect, whoever leads.
        await rig.processes["scheduler"].kill9()
        await rig.processes["scheduler"].start()
        await rig.processes["scheduler"].wait_ready()

        async def moved() -> bool:
            return await rig.placed(ns, "job-a") == {other(home): 1}

        await until(moved, "dispatched again", 90)
        assert (await rig.workload(ns, "job-a"))["attempts"] == 1
        await until(lambda: is_running(rig, other(home), ns, "a"), "it runs there")
    finally:
        await wake(rig, home)  # the next try, and the next test, need both

    async def collected() -> bool:
        return await rig.list(home, JOBS, ns) == []

    await until(collected, "the old copy is removed", 60)
    assert await rig.placed(ns, "job-a") == {other(home): 1}


async def test_behaviour_19_a_local_job_of_the_name_is_left_alone(rig: PlacementRig, ns: str) -> None:
    for member in ("east", "west"):
        await rig.clients[member].create(NAMESPACES, None, {"metadata": {"name": ns}})
        local = await rig.clients[member].create(JOBS, ns, job("a", ns))
        if member == "east":
            uid = local["metadata"]["uid"]
    await rig.clients[""].create(JOBS, ns, job("a", ns))

    async def refused() -> bool:
        message = (await rig.condition(ns, "job-a", "Scheduled")).get("message", "")
        return "east: NameClash" in message and "west: NameClash" in message

    await until(refused, "reason shown")
    assert await rig.placed(ns, "job-a") is None
    await rig.clients["west"].delete(JOBS, ns, "a", propagation="Background")
    # A name that becomes free tells nobody: it is tried again by itself.
    assert await until(lambda: rig.placed(ns, "job-a"), "placed on west", 60) == {"west": 1}
    left = await rig.get("east", JOBS, ns, "a")
    assert left is not None
    assert left["metadata"]["uid"] == uid
    for member in ("east", "west"):
        await rig.clients[member].delete(NAMESPACES, None, ns)


async def test_behaviour_20_local_jobs_count(rig: PlacementRig, ns: str) -> None:
    await rig.clients["east"].create(NAMESPACES, None, {"metadata": {"name": ns}})
    for number in range(2):
        await rig.clients["east"].create(JOBS, ns, job(f"local-{number}", ns, cpu="6"))

    async def running() -> bool:
        return all([await is_running(rig, "east", ns, f"local-{n}") for n in range(2)])

    await until(running, "local jobs run")
    # Nodes have 8 cores: beside the local jobs nothing of 6 fits on east.
    assert await create_job(rig, "a", ns, cpu="6") == "west"
    assert await create_job(rig, "b", ns, cpu="6") == "west"
    await rig.clients[""].create(JOBS, ns, job("c", ns, cpu="6"))

    async def refused() -> bool:
        return "asks cpu 6" in (await rig.condition(ns, "job-c", "Scheduled")).get("message", "")

    await until(refused, "no room, with numbers")
    await rig.clients["east"].delete(JOBS, ns, "local-0", propagation="Background")
    assert await until(lambda: rig.placed(ns, "job-c"), "placed once there is room") == {"east": 1}
    assert await is_running(rig, "east", ns, "local-1")
    await rig.clients["east"].delete(NAMESPACES, None, ns)


async def test_behaviour_24_a_divided_deployment_scales_stickily(rig: PlacementRig, ns: str, host: Kubectl) -> None:
    await host("-n", ns, "create", "deployment", "web", "--image=nginx:1", "--replicas=4")

    async def at(**wanted: int) -> bool:
        return await rig.placed(ns, "deployment-web") == wanted

    await until(lambda: at(east=2, west=2), "two each")
    await host("-n", ns, "scale", "deployment/web", "--replicas=6")
    await until(lambda: at(east=3, west=3), "three each")
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=60s")
    await host("-n", ns, "scale", "deployment/web", "--replicas=3")

    async def shrunk() -> bool:
        placed = await rig.placed(ns, "deployment-web") or {}
        return sorted(placed.values()) == [1, 2]

    await until(shrunk, "three in all")
    await host("-n", ns, "delete", "deployment", "web")


async def test_rule_11_cordon_keeps_new_work_away_and_drain_moves_it(
    rig: PlacementRig, ns: str, host: Kubectl
) -> None:
    await host("-n", ns, "create", "deployment", "web", "--image=nginx:1", "--replicas=2")

    async def at(**wanted: int) -> bool:
        return await rig.placed(ns, "deployment-web") == wanted

    await until(lambda: at(east=1, west=1), "one each")

    async def taint(effect: str | None) -> None:
        taints = [{"key": MAINTENANCE, "effect": effect}] if effect else None
        await rig.clients[""].patch(CLUSTERS, None, "east", {"spec": {"taints": taints}})

    try:
        await taint("NoSchedule")

        async def kept_away() -> bool:
            found = await explain(rig, ns, "Deployment", "web")
            return {v.cluster: v.filter for v in found.verdicts}.get("east") == "Taint"

        await until(kept_away, "the cordon is known")
        assert await create_job(rig, "a", ns) == "west"
        await host("-n", ns, "scale", "deployment/web", "--replicas=4")
        await until(lambda: at(east=1, west=3), "new replicas on west")
        await taint("NoExecute")
        await until(lambda: at(west=4), "all on west")
        await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=60s")
    finally:
        await taint(None)


async def explain(rig: PlacementRig, ns: str, kind: str, name: str) -> pb.ExplainResponse:
    async with grpc.aio.insecure_channel(rig.scheduler) as channel:
        stub = scheduler_pb2_grpc.PlacementServiceStub(channel)
        owner = pb.OwnerRef(namespace=ns, kind=kind, name=name)
        found: pb.ExplainResponse = await stub.Explain(pb.ExplainRequest(owner=owner), timeout=10)
        return found


async def test_explain_and_place_object_give_numbers(rig: PlacementRig, ns: str) -> None:
    await rig.clients[""].create(JOBS, ns, job("big", ns, cpu="1000"))

    async def known() -> bool:
        return bool((await rig.condition(ns, "job-big", "Scheduled")).get("message"))

    await until(known, "judged")
    found = await explain(rig, ns, "job", "big")
    assert {v.cluster: v.filter for v in found.verdicts} == {"east": "Capacity", "west": "Capacity"}
    assert all(v.asked["cpu"] == "1000" and "asks cpu 1000, free" in v.message for v in found.verdicts)

    async with grpc.aio.insecure_channel(rig.scheduler) as channel:
        stub = scheduler_pb2_grpc.PlacementServiceStub(channel)
        picks = {}
        for cpu in ("1", "1000"):
            container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
            manifest = json.dumps({"spec": {"containers": [container]}}).encode()
            request = pb.PlaceObjectRequest(
                api_version="v1", kind="Pod", namespace=ns, name=f"p{cpu}", manifest=manifest
            )
            picks[cpu] = await stub.PlaceObject(request, timeout=10)
        assert picks["1"].fits
        assert not picks["1000"].fits
        assert picks["1000"].cluster in ("east", "west")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stub.PlaceObject(
                pb.PlaceObjectRequest(api_version="example.com/v1", kind="Nothing", namespace=ns), timeout=10
            )
        assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "does not serve Nothing of example.com/v1" in str(failure.value.details())


async def test_the_placement_service_submits_watches_and_cancels(rig: PlacementRig, ns: str) -> None:
    kinds = pb.WatchResponse
    ref = pb.WorkloadRef(namespace=ns, name="own")
    async with grpc.aio.insecure_channel(rig.scheduler) as channel:
        stub = scheduler_pb2_grpc.PlacementServiceStub(channel)
        watch = stub.Watch(pb.WatchRequest(namespace=ns))
        async with asyncio.timeout(30):
            assert (await watch.read()).type == kinds.EVENT_TYPE_SYNCED
            owner = pb.OwnerRef(api_version="example.com/v1", kind="Own", namespace=ns, name="own")
            pods = pb.PodSet(name="main", count=2, requests={"cpu": "100m"})
            submitted = pb.Workload(ref=ref, owner=owner, pod_sets=[pods])
            stored = (await stub.Submit(pb.SubmitRequest(workload=submitted))).workload
            assert stored.resource_version
            submitted.resource_version = "1"
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await stub.Submit(pb.SubmitRequest(workload=submitted))
            assert failure.value.code() is grpc.StatusCode.ABORTED
            while not (event := await watch.read()).workload.placements:
                assert event.workload.ref == ref
            found = (await stub.Get(pb.GetRequest(ref=ref))).workload
            assert sum(p.replicas for p in found.placements) == 2
            assert [w.ref for w in (await stub.List(pb.ListRequest(namespace=ns))).workloads] == [ref]
            await stub.Cancel(pb.CancelRequest(ref=ref))
            while (event := await watch.read()).type != kinds.EVENT_TYPE_DELETED:
                assert event.workload.ref == ref
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stub.Get(pb.GetRequest(ref=ref))
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND
        watch.cancel()


async def test_rule_9_a_third_cluster_takes_what_waits_and_leaves_in_order(rig: PlacementRig, ns: str) -> None:
    await policy(rig, ns, type="Single", clusterNames=["north"], workerLostTimeout=600)
    await rig.clients[""].create(JOBS, ns, job("a", ns))

    async def refused() -> bool:
        message = (await rig.condition(ns, "job-a", "Scheduled")).get("message", "")
        return f"east: ClusterNames: policy {ns} names north" in message

    await until(refused, "no candidate")
    await rig.fleet.add_member("north")
    try:
        assert await until(lambda: rig.placed(ns, "job-a"), "placed on the new cluster", 60) == {"north": 1}
        await rig.clients[""].delete(JOBS, ns, "a", propagation="Background")

        async def gone() -> bool:
            return await rig.list("", WORKLOADS, ns) == []

        await until(gone, "Workload gone")
    finally:
        await rig.fleet.remove_member("north")
        await rig.forget("north")  # else what it may hold is waited for


async def test_behaviour_29_manager_and_worker_killed_while_jobs_are_created(rig: PlacementRig, ns: str) -> None:
    total = 24
    names = [f"j{number:02}" for number in range(total)]

    async def create() -> None:
        for name in names:
            await rig.clients[""].create(JOBS, ns, job(name, ns, cpu="10m"))
            await asyncio.sleep(0.05)

    async def all_placed() -> bool:
        found = await rig.list("", WORKLOADS, ns)
        return sum(1 for w in found if (w.get("status") or {}).get("placement")) == total

    creation = asyncio.create_task(create())
    await asyncio.sleep(0.5)
    before: dict[str, Any] = {}
    for victim in ("scheduler", "worker"):
        await rig.processes[victim].kill9()
        for item in await rig.list("", WORKLOADS, ns):
            placement = (item.get("status") or {}).get("placement")
            if placement:
                before.setdefault(item["metadata"]["name"], placement)
        await rig.processes[victim].start()
    await creation
    await until(all_placed, "all are placed", 90)
    after = {w["metadata"]["name"]: w["status"]["placement"] for w in await rig.list("", WORKLOADS, ns)}
    assert {name: after[name] for name in before} == before, "nothing moved"

    async def all_copied() -> bool:
        copies = [item for member in ("east", "west") for item in await rig.list(member, JOBS, ns)]
        return Counter(item["metadata"]["name"] for item in copies) == Counter(dict.fromkeys(names, 1))

    await until(all_copied, "every Job on exactly one member", 60)
