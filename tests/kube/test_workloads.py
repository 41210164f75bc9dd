"""Workloads on real clusters: spec down, status up, dependencies, deletion, garbage. Numbers are those of the
behaviours in the placement design."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from deploy.local.fleet import Fleet
from services.common.kube.resource import EVENTS, NAMESPACES, PODS, SECRETS, Resource
from services.reconciler.names import (
    CONFIGMAPS,
    DAEMONSETS,
    DEPLOYMENTS,
    JOBS,
    REPLICASETS,
    SERVICES,
    STATEFULSETS,
    WORKLOADS,
)  # fmt: skip
from services.reconciler.workload_spec import new_workload
from tests.kube.conftest import Kubectl
from tests.kube.reconciler_rig import Obj, Rig, Sampler

POLICIES = Resource("reclock.dev", "v1alpha1", "placementpolicies", "PlacementPolicy", namespaced=False)
FIXED = {"maxSurge": 0, "maxUnavailable": 1}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rig(clusters: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with Rig(clusters, tmp_path_factory.mktemp("rig")).running() as running:
        yield running


@pytest.fixture
def host(rig: Rig, kubectl: Callable[..., Kubectl]) -> Kubectl:
    return kubectl(rig.fleet.host.kubeconfig)


@pytest_asyncio.fixture(loop_scope="session")
async def ns(rig: Rig, host: Kubectl, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A namespace for one test; nothing of it may be left anywhere afterwards."""
    name = request.node.name.replace("_", "-").split("[")[0][:50].strip("-")
    await host("create", "namespace", name)
    yield name
    await host("delete", "namespace", name, timeout=120)
    for cluster in rig.clients:
        assert await rig.get(cluster, NAMESPACES, "", name) is None


async def until(condition: Callable[[], Awaitable[Any]], what: str, timeout: float = 30) -> Any:
    """Wait until the condition holds and return what it gave."""
    try:
        async with asyncio.timeout(timeout):
            while not (value := await condition()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return value
    except TimeoutError:
        raise AssertionError(f"not within {timeout} s: {what}") from None


async def pin(rig: Rig, ns: str, *members: str) -> None:
    """All workloads of the namespace go to these members."""
    spec = {"priority": 100, "clusterNames": list(members), "resourceSelectors": [{"namespace": ns}]}
    await rig.clients[""].create(POLICIES, None, {
        "apiVersion": "reclock.dev/v1alpha1", "kind": "PlacementPolicy", "metadata": {"name": ns}, "spec": spec,
    })  # fmt: skip


def job(name: str, ns: str, run_time: str = "1s", **spec: Any) -> Obj:
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}
    template = {"metadata": {"annotations": {"fleet.reclock.dev/run-time": run_time}}, "spec": pod}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": ns},
            "spec": {"template": template, **spec}}  # fmt: skip


async def home(rig: Rig, ns: str, name: str, resource: Resource = JOBS) -> str:
    """The member that has the copy."""
    async def found() -> str:
        return next((m for m, n in (await rig.count(resource, ns, fieldSelector=f"metadata.name={name}")).items() if n), "")

    return str(await until(found, f"a copy of {name}"))


def is_true(obj: Obj | None, kind: str) -> bool:
    conditions = ((obj or {}).get("status") or {}).get("conditions") or []
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


async def spread(rig: Rig, ns: str) -> dict[str, int]:
    """Member -> pods that are there and stay."""
    found = {}
    for member in rig.fleet.members:
        pods = await rig.list(member, PODS, ns)
        found[member] = sum(1 for pod in pods if "deletionTimestamp" not in pod["metadata"])
    return found


async def test_behaviour_24_deployment_divided_rolled_scaled_undone_deleted(
    rig: Rig, host: Kubectl, ns: str
) -> None:
    await host("-n", ns, "create", "deployment", "web", "--image=nginx:1", "--replicas=4")
    strategy = json.dumps({"spec": {"strategy": {"rollingUpdate": FIXED}}})
    await host("-n", ns, "patch", "deployment", "web", "-p", strategy)
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=60s")
    assert await spread(rig, ns) == {"east": 2, "west": 2}

    async with Sampler(rig, PODS, ns, "app=web") as seen:
        await host("-n", ns, "set", "image", "deployment/web", "nginx=nginx:2")
        await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=90s")
        await host("-n", ns, "rollout", "undo", "deployment/web")
        await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=90s")
    assert seen.fewest_ready == 3 and seen.most_replicas == 4 and seen.samples > 20
    assert await spread(rig, ns) == {"east": 2, "west": 2}
    images = {c["image"] for m in rig.fleet.members for p in await rig.list(m, PODS, ns) for c in p["spec"]["containers"]
              if "deletionTimestamp" not in p["metadata"]}  # fmt: skip
    assert images == {"nginx:1"}

    for size, want in ((7, (3, 4)), (2, (1, 1))):
        await host("-n", ns, "scale", "deployment/web", f"--replicas={size}")
        await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=60s")
        await until(lambda: _spreads(rig, ns, want), f"{size} pods over the members as {want}")  # noqa: B023
    shown = await rig.get("", DEPLOYMENTS, ns, "web")
    assert shown is not None and shown["status"]["readyReplicas"] == 2

    await host("-n", ns, "delete", "deployment", "web", "--cascade=foreground")
    assert await rig.list("", REPLICASETS, ns) == []
    assert await rig.count(REPLICASETS, ns) == await rig.count(PODS, ns) == {"east": 0, "west": 0}

    async def no_workload() -> bool:
        # The host's garbage collector learns of a CRD up to half a minute late; then Reclock removes it.
        return not await rig.list("", WORKLOADS, ns)

    await until(no_workload, "its Workload is gone")


async def _spreads(rig: Rig, ns: str, want: tuple[int, int]) -> bool:
    return tuple(sorted((await spread(rig, ns)).values())) == want


async def test_counts_never_show_more_than_exists(rig: Rig, host: Kubectl, ns: str) -> None:
    """At every event of the host's ReplicaSets, against all that the members' ReplicaSets said until then."""
    said: list[tuple[float, str, str, int]] = []
    clock = asyncio.get_running_loop().time

    async def follow(cluster: str) -> None:
        async with rig.clients[cluster].stream("GET", REPLICASETS.path(ns), query={"watch": "true"}) as answer:
            async for line in answer.content:
                obj = json.loads(line)["object"]
                said.append((clock(), cluster, obj["metadata"]["name"], (obj.get("status") or {}).get("readyReplicas", 0)))

    tasks = [asyncio.create_task(follow(cluster)) for cluster in rig.clients]
    await asyncio.sleep(0.3)
    await host("-n", ns, "create", "deployment", "web", "--image=nginx:1", "--replicas=3")
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=60s")
    await host("-n", ns, "set", "image", "deployment/web", "nginx=nginx:2")
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=90s")
    await host("-n", ns, "delete", "deployment", "web")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    shown = [entry for entry in said if not entry[1]]
    assert len(shown) > 10
    for moment, _, name, ready in shown:
        # Two connections deliver in any order: a second covers what had happened by then.
        most = [
            max((n for t, c, rs, n in said if (c, rs) == (member, name) and t <= moment + 1), default=0)
            for member in rig.fleet.members
        ]
        assert ready <= sum(most), (moment, name, ready, most)


async def test_behaviour_3_job_completes_and_stays_for_its_logs(rig: Rig, host: Kubectl, ns: str) -> None:
    await rig.clients[""].create(JOBS, ns, job("once", ns, ttlSecondsAfterFinished=3600))
    await host("-n", ns, "wait", "--for=condition=complete", "job/once", "--timeout=60s")
    shown = await rig.get("", JOBS, ns, "once")
    assert shown is not None and shown["status"]["succeeded"] == 1 and not shown["status"].get("active")

    async def finished() -> bool:
        return is_true(await rig.get("", WORKLOADS, ns, "job-once"), "Finished")

    await until(finished, "the Workload is Finished")
    member = await home(rig, ns, "once")
    copy = await rig.get(member, JOBS, ns, "once")
    assert copy is not None and "ttlSecondsAfterFinished" not in copy["spec"]
    pods = await rig.list(member, PODS, ns, labelSelector="batch.kubernetes.io/job-name=once")
    selector = shown["spec"]["selector"]["matchLabels"]
    assert len(pods) == 1 and selector.items() <= pods[0]["metadata"]["labels"].items()

    await host("-n", ns, "delete", "job", "once")

    async def gone() -> bool:
        return not any([*(await rig.count(JOBS, ns)).values(), *(await rig.count(PODS, ns)).values()])

    await until(gone, "copy and pods are gone")


async def test_behaviour_4_job_suspended_and_resumed(rig: Rig, host: Kubectl, ns: str) -> None:
    await rig.clients[""].create(JOBS, ns, job("long", ns, "600s", suspend=True))

    async def suspended() -> bool:
        shown = await rig.get("", JOBS, ns, "long")
        return is_true(shown, "Suspended") and not (shown or {})["status"].get("active")

    async def active() -> bool:
        shown = await rig.get("", JOBS, ns, "long")
        return bool(shown and shown["status"].get("active") and not is_true(shown, "Suspended"))

    await until(suspended, "a Job that was made suspended says so")
    assert await rig.count(PODS, ns) == {"east": 0, "west": 0}
    for _ in range(2):
        await host("-n", ns, "patch", "job", "long", "-p", '{"spec":{"suspend":false}}')
        await until(active, "it runs")
        member = await home(rig, ns, "long")
        await host("-n", ns, "patch", "job", "long", "-p", '{"spec":{"suspend":true}}')
        await until(suspended, "it stops")

        async def empty() -> bool:
            return not any((await rig.count(PODS, ns)).values())

        await until(empty, "its pods are gone")
        copy = await rig.get(member, JOBS, ns, "long")
        assert copy is None or copy["spec"]["suspend"] is True


async def test_cronjob_makes_jobs_that_are_placed(rig: Rig, host: Kubectl, ns: str) -> None:
    await host("-n", ns, "create", "cronjob", "tick", "--image=busybox", "--schedule=* * * * *")

    async def made() -> bool:
        return bool(await rig.list("", JOBS, ns))

    await until(made, "the CronJob makes a Job", timeout=70)
    name = (await rig.list("", JOBS, ns))[0]["metadata"]["name"]
    await host("-n", ns, "wait", "--for=condition=complete", f"job/{name}", "--timeout=60s")
    await host("-n", ns, "delete", "cronjob", "tick")


async def test_statefulset_with_its_dependencies(rig: Rig, host: Kubectl, ns: str) -> None:
    pod = {
        "containers": [{
            "name": "db", "image": "db", "envFrom": [{"configMapRef": {"name": "conf"}}],
            "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "late", "key": "p"}}}],
        }],
        "volumes": [{"name": "v", "configMap": {"name": "nowhere", "optional": True}}],
    }  # fmt: skip
    await host("-n", ns, "create", "configmap", "conf", "--from-literal=a=1", "--from-literal=b=2")
    await rig.clients[""].create(SERVICES, ns, {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"},
        "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 5432}]},
    })  # fmt: skip
    await rig.clients[""].create(STATEFULSETS, ns, {
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
        "spec": {"serviceName": "db", "replicas": 2, "selector": {"matchLabels": {"app": "db"}},
                 "template": {"metadata": {"labels": {"app": "db"}}, "spec": pod}},
    })  # fmt: skip
    await host("-n", ns, "rollout", "status", "statefulset/db", "--timeout=60s")
    member = await home(rig, ns, "db", STATEFULSETS)
    assert (await rig.count(PODS, ns))[member] == 2
    service = await rig.get(member, SERVICES, ns, "db")
    assert service is not None and service["spec"]["clusterIP"] == "None"

    async def says(text: str) -> bool:
        workload = await rig.get("", WORKLOADS, ns, "statefulset-db")
        return text in json.dumps((workload or {})["status"].get("copies"))

    await until(lambda: says(f"secret {ns}/late is not on the host"), "what is missing is reported")
    await host("-n", ns, "create", "secret", "generic", "late", "--from-literal=p=1")
    await until(lambda: says("Applied"), "it is there")
    assert await rig.get(member, SECRETS, ns, "late") is not None

    removal = '[{"op":"remove","path":"/data/b"},{"op":"replace","path":"/data/a","value":"3"}]'
    await host("-n", ns, "patch", "configmap", "conf", "--type=json", "-p", removal)

    async def equal() -> bool:
        return ((await rig.get(member, CONFIGMAPS, ns, "conf")) or {}).get("data") == {"a": "3"}

    await until(equal, "the copy follows, removals too")
    changed = {"data": {"a": "tampered"}}
    await rig.clients[member].patch(CONFIGMAPS, ns, "conf", changed)
    await until(equal, "a change on the member is put right")

    await host("-n", ns, "delete", "statefulset", "db")

    async def unreferenced() -> bool:
        kinds = (STATEFULSETS, SERVICES, SECRETS)
        left = [n for kind in kinds for n in (await rig.count(kind, ns)).values()]
        return not any(left) and await rig.get(member, CONFIGMAPS, ns, "conf") is None

    await until(unreferenced, "what nothing needs any more is removed")


async def test_daemonset_on_every_member(rig: Rig, host: Kubectl, ns: str) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await rig.clients[""].create(DAEMONSETS, ns, {
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template},
    })  # fmt: skip
    await host("-n", ns, "rollout", "status", "daemonset/agent", "--timeout=60s")
    shown = await rig.get("", DAEMONSETS, ns, "agent")
    nodes = sum(cluster.nodes for cluster in rig.fleet.members.values())
    assert shown is not None and shown["status"]["numberReady"] == nodes
    assert await rig.count(PODS, ns) == {name: cluster.nodes for name, cluster in rig.fleet.members.items()}


async def test_behaviour_19_a_foreign_job_is_never_touched(rig: Rig, host: Kubectl, ns: str) -> None:
    await rig.clients["east"].create(NAMESPACES, None, {"metadata": {"name": ns}})
    foreign = await rig.clients["east"].create(JOBS, ns, job("clash", ns, "600s"))
    await rig.clients[""].create(JOBS, ns, job("clash", ns, "600s"))

    async def on_west() -> bool:
        return (await rig.get("west", JOBS, ns, "clash")) is not None

    await until(on_west, "the other member gets it")
    there = await rig.get("east", JOBS, ns, "clash")
    assert there is not None and there["metadata"]["uid"] == foreign["metadata"]["uid"]
    await host("-n", ns, "delete", "job", "clash", "--cascade=foreground")
    there = await rig.get("east", JOBS, ns, "clash")
    assert there is not None and there["metadata"]["uid"] == foreign["metadata"]["uid"]
    # The namespace was there before Reclock: it stays, with what is in it. The test cleans up by itself.
    await rig.clients["east"].delete(JOBS, ns, "clash", propagation="Background")
    await rig.clients["east"].delete(NAMESPACES, None, ns)

    async def removed() -> bool:
        return await rig.get("east", NAMESPACES, "", ns) is None

    await until(removed, "the namespace is gone", timeout=60)


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


async def test_orphaned_children_live_on(rig: Rig, host: Kubectl, ns: str) -> None:
    await host("-n", ns, "create", "deployment", "web", "--image=nginx", "--replicas=2")
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=60s")
    before = {p["metadata"]["uid"] for m in rig.fleet.members for p in await rig.list(m, PODS, ns)}
    await host("-n", ns, "delete", "deployment", "web", "--cascade=orphan")

    async def handed_over() -> bool:
        names = [w["metadata"]["name"] for w in await rig.list("", WORKLOADS, ns)]
        return len(names) == 1 and names[0].startswith("replicaset-")

    await until(handed_over, "the ReplicaSet has a Workload of its own")
    after = {p["metadata"]["uid"] for m in rig.fleet.members for p in await rig.list(m, PODS, ns)}
    assert after == before

    await host("-n", ns, "create", "deployment", "web", "--image=nginx", "--replicas=2")
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=60s")

    async def adopted() -> bool:
        return [w["metadata"]["name"] for w in await rig.list("", WORKLOADS, ns)] == ["deployment-web"]

    await until(adopted, "the Deployment's Workload is the only one")
    assert {p["metadata"]["uid"] for m in rig.fleet.members for p in await rig.list(m, PODS, ns)} == before
    await host("-n", ns, "delete", "deployment", "web", "--cascade=orphan")
    await until(handed_over, "it has one of its own again")
    name = (await rig.list("", REPLICASETS, ns))[0]["metadata"]["name"]
    await host("-n", ns, "delete", "replicaset", name, "--cascade=orphan")

    async def orphaned() -> bool:
        return await rig.count(REPLICASETS, ns) == {"east": 0, "west": 0}

    await until(orphaned, "the copies are gone")
    assert {p["metadata"]["uid"] for m in rig.fleet.members for p in await rig.list(m, PODS, ns)} == before
    for member in rig.fleet.members:
        for pod in await rig.list(member, PODS, ns):
            await rig.clients[member].delete(PODS, ns, pod["metadata"]["name"])


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
        await host("wait", "cluster/west", "--for=condition=Reachable=False", "--timeout=30s")
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
        await host("wait", "cluster/west", "--for=condition=Reachable=False", "--timeout=30s")
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
    await host("wait", "cluster/west", "--for=condition=Reachable", "--timeout=60s")
    await host("-n", ns, "scale", "deployment/web", "--replicas=6")
    # The member's own controllers and nodes need a while to find back.
    await host("-n", ns, "rollout", "status", "deployment/web", "--timeout=180s", timeout=200)
    assert await spread(rig, ns) == {"east": 3, "west": 3}


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


async def spread_of(rig: Rig, ns: str, selector: str) -> dict[str, int]:
    found = {}
    for member in rig.fleet.members:
        pods = await rig.list(member, PODS, ns, labelSelector=selector)
        found[member] = sum(1 for pod in pods if "deletionTimestamp" not in pod["metadata"])
    return found


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
