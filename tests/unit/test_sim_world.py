"""Controllers and faults of simulated clusters, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.local.sim import Cluster, DeleteOptions, Refused, Rule, World
from deploy.local.sim.schedule import Schedule


def template(label: str, image: str = "nginx:1", **spec: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": image}], **spec}
    return {"metadata": {"labels": {"app": label}}, "spec": spec}


def workload(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    if kind != "Job":
        spec["selector"] = {"matchLabels": {"app": name}}
    spec.setdefault("template", template(name))
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def world() -> World:
    return World(11)


@pytest.fixture
def east(world: World) -> Cluster:
    cluster = world.add("east", nodes=2)
    world.settle()
    return cluster


def phases(cluster: Cluster) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in cluster.objects("pods")}


def status(cluster: Cluster, plural: str, name: str) -> dict[str, Any]:
    return dict(cluster.get(plural, "default", name)["status"])


def test_an_undone_rollout_finds_its_old_replica_set(world: World, east: Cluster) -> None:
    east.create(workload("Deployment", "web", replicas=2))
    world.advance(5)
    old = east.get("deployments.apps", "default", "web")["spec"]["template"]
    east.patch("deployments.apps", "default", "web", {"spec": {"template": template("web", "nginx:2")}})
    world.advance(10)
    # `kubectl rollout undo` replaces the template by the old ReplicaSet's as Go writes it.
    now = east.get("deployments.apps", "default", "web")
    undone = {**old, "metadata": {**old["metadata"], "creationTimestamp": None}}
    east.replace({**now, "spec": {**now["spec"], "template": undone}})
    world.advance(10)
    sets = {one["metadata"]["name"]: one["spec"]["replicas"] for one in east.objects("replicasets.apps")}
    assert sorted(sets.values()) == [0, 2], sets


def test_a_deployment_comes_up_rolls_over_and_goes_with_its_pods(world: World, east: Cluster) -> None:
    east.create(workload("Deployment", "web", replicas=3))
    world.advance(0.2)
    assert set(phases(east).values()) == {"Pending"}
    world.advance(5)
    assert list(phases(east).values()) == ["Running"] * 3
    assert status(east, "deployments.apps", "web")["availableReplicas"] == 3
    east.patch("deployments.apps", "default", "web", {"spec": {"template": template("web", "nginx:2")}})
    lowest = 3
    for _ in range(100):
        world.advance(0.1)
        lowest = min(lowest, status(east, "deployments.apps", "web").get("availableReplicas", 0))
    assert lowest >= 3, "maxUnavailable 25% of 3 rounds down to none"
    images = {pod["spec"]["containers"][0]["image"] for pod in east.objects("pods")}
    assert images == {"nginx:2"} and len(phases(east)) == 3
    east.delete("deployments.apps", "default", "web", DeleteOptions(propagation="Foreground"))
    assert east.get("deployments.apps", "default", "web")["metadata"]["finalizers"] == ["foregroundDeletion"]
    world.advance(5)
    assert not phases(east) and not east.states("deployments.apps") and not east.states("replicasets.apps")


def test_orphans_stay_and_are_adopted(world: World, east: Cluster) -> None:
    east.create(workload("ReplicaSet", "rs", replicas=2))
    world.advance(3)
    before = set(phases(east))
    east.delete("replicasets.apps", "default", "rs", DeleteOptions(propagation="Orphan"))
    world.advance(3)
    assert set(phases(east)) == before
    assert not any(pod["metadata"].get("ownerReferences") for pod in east.objects("pods"))
    east.create(workload("ReplicaSet", "rs", replicas=2))
    world.advance(3)
    assert set(phases(east)) == before


def test_jobs_complete_or_fail(world: World, east: Cluster) -> None:
    east.create(
        workload("Job", "good", completions=3, parallelism=2, template=template("j", restartPolicy="Never"))
    )
    bad = template("k", restartPolicy="Never")
    bad["metadata"]["annotations"] = {"fleet.reclock.dev/exit-code": "1"}
    east.create(workload("Job", "bad", backoffLimit=1, template=bad))
    world.advance(30)
    good, failed = status(east, "jobs.batch", "good"), status(east, "jobs.batch", "bad")
    assert good["succeeded"] == 3 and good["conditions"][-1]["type"] == "Complete"
    assert failed["failed"] == 2 and failed["conditions"][-1]["type"] == "Failed"


def test_stateful_sets_go_one_by_one_and_daemons_one_a_node(world: World, east: Cluster) -> None:
    east.create(workload("StatefulSet", "db", replicas=3, serviceName="db"))
    east.create(workload("DaemonSet", "agent"))
    world.advance(1.5)
    assert [name for name in phases(east) if name.startswith("db-")] == ["db-0", "db-1"]
    world.advance(5)
    assert [name for name in phases(east) if name.startswith("db-")] == ["db-0", "db-1", "db-2"]
    nodes = [p["spec"]["nodeName"] for p in east.objects("pods") if p["metadata"]["name"].startswith("agent")]
    assert sorted(nodes) == ["east-n0", "east-n1"]


def test_what_fits_nowhere_waits_until_there_is_room(world: World, east: Cluster) -> None:
    big = template("big")
    big["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "5"}}
    east.create(workload("Deployment", "big", replicas=3, template=big))
    world.advance(5)
    assert sorted(phases(east).values()) == ["Pending", "Running", "Running"]
    waiting = next(pod for pod in east.objects("pods") if pod["status"]["phase"] == "Pending")
    condition = waiting["status"]["conditions"][-1]
    assert condition["message"] == "0/2 nodes are available: 2 Insufficient cpu."
    running = next(pod for pod in east.objects("pods") if pod["status"]["phase"] == "Running")
    east.patch("deployments.apps", "default", "big", {"spec": {"replicas": 2}})
    world.advance(1)
    assert sorted(phases(east).values()) == ["Running", "Running"]
    assert running["metadata"]["name"] in phases(east)


def test_a_namespace_goes_with_what_is_in_it_and_takes_nothing_new(world: World, east: Cluster) -> None:
    east.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    world.advance(1)
    assert east.get("serviceaccounts", "shop", "default")
    held = {"name": "held", "namespace": "shop", "finalizers": ["example.com/hold"]}
    east.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": held})
    east.delete("namespaces", None, "shop")
    world.advance(1)
    with pytest.raises(Refused) as refused:
        east.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new", "namespace": "shop"}}
        )
    assert refused.value.code == 403 and "because it is being terminated" in refused.value.message
    east.patch("configmaps", "shop", "held", {"metadata": {"finalizers": None}})
    world.advance(1)
    assert "shop" not in east.states("namespaces")


def test_custom_resources_are_served_pruned_defaulted_and_refused(world: World, east: Cluster) -> None:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {"size": {"type": "integer", "minimum": 1}, "mode": {"type": "string", "default": "x"}},
            },
        },
    }  # fmt: skip
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
               "subresources": {"status": {}}}  # fmt: skip
    east.create({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "shops.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "versions": [version],
                 "names": {"plural": "shops", "kind": "Shop"}},
    })  # fmt: skip
    world.settle()
    shop = {
        "apiVersion": "example.com/v1",
        "kind": "Shop",
        "metadata": {"name": "s"},
        "spec": {"size": 2, "junk": 1},
    }
    made = east.create(shop)
    assert made["spec"] == {"size": 2, "mode": "x"} and made["metadata"]["generation"] == 1
    with pytest.raises(Refused) as refused:
        east.create({**shop, "metadata": {"name": "t"}, "spec": {"size": 0}})
    assert refused.value.message == (
        'Shop.example.com "t" is invalid: spec.size: Invalid value: 0: spec.size in body should be greater than or '
        "equal to 1"
    )
    east.delete("customresourcedefinitions.apiextensions.k8s.io", None, "shops.example.com")
    world.settle()
    with pytest.raises(LookupError):
        east.create(shop)


def test_the_same_seed_gives_the_same_history() -> None:
    def run() -> tuple[list[tuple[float, str]], dict[str, int]]:
        world = World(5)
        cluster = world.add("east", nodes=2)
        schedule = Schedule(cluster, seed=9, seconds=1)
        schedule.start()
        cluster.create(workload("Deployment", "web", replicas=4))
        world.advance(60)
        return schedule.history, {key: state.version for key, state in cluster.states("pods").items()}

    first, second = run(), run()
    assert first == second
    assert len({what for _, what in first[0]}) > 4


def test_fault_rules_meet_what_they_name_and_as_often_as_they_say(east: Cluster) -> None:
    east.faults.add(Rule("error", verbs=("list",), resources=("pods",), count=2))
    assert east.faults.decide("list", "nodes") is None
    assert [east.faults.decide("list", "pods") is not None for _ in range(3)] == [True, True, False]
    with pytest.raises(ValueError, match="kind 'odd': allowed are delay"):
        Rule.read({"kind": "odd"})


def test_a_lost_network_holds_events_back(world: World, east: Cluster) -> None:
    watch = east.watch("configmaps", resourceVersion=str(east.revision))
    east.lose_network()
    east.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    assert not watch.events and east.faults.decide("get", "pods") is not None
    east.find_network()
    assert [event.kind for event in watch.take()] == ["ADDED"] and east.faults.decide("get", "pods") is None


def test_a_thousand_clusters_live_in_one_process() -> None:
    world = World(3)
    clusters = [world.add(f"m{number}", nodes=1) for number in range(1000)]
    world.settle()
    some = clusters[::50]
    for one in some:
        one.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "spec": template("p")["spec"]})
    world.advance(5)
    assert all(phases(one) == {"p": "Running"} for one in some)
    assert len({one.uid for one in clusters}) == 1000 and all(len([*one.objects("nodes")]) == 1 for one in clusters)
    assert not [*clusters[1].objects("pods")], "what is one cluster's is no other's"
