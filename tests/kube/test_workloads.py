"""Workloads on real clusters: spec down, status up, dependencies, deletion. Numbers are those of the behaviours
in the placement design."""

from __future__ import annotations

import asyncio
import json

from services.common.kube.resource import NAMESPACES, PODS, SECRETS
from services.reconciler.names import (
    CONFIGMAPS,
    DAEMONSETS,
    DEPLOYMENTS,
    JOBS,
    REPLICASETS,
    SERVICES,
    STATEFULSETS,
    WORKLOADS,
)
from tests.kube.conftest import Kubectl
from tests.kube.reconciler_rig import (
    FIXED,
    Rig,
    Sampler,
    home,
    host,
    is_true,
    job,
    ns,
    rig,
    spread,
    until,
)

__all__ = ["host", "ns", "rig"]


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
