"""A Deployment over both members: every kubectl command of its life."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.kube.session.tools import Kubectl, RunningFleet, cluster_of, eventually, ready_pods


def manifest(name: str, replicas: int) -> str:
    return json.dumps({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "web", "image": "example/web:1", "resources": {"requests": {"cpu": "50m"}}}]},
            },
        },
    })  # fmt: skip


def spread(kubectl: Kubectl, selector: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pod in ready_pods(kubectl, selector):
        counts[cluster_of(pod)] = counts.get(cluster_of(pod), 0) + 1
    return counts


def test_life_of_a_deployment(fleet: RunningFleet, kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=4")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert spread(kubectl, "app=web") == {"east": 2, "west": 2}

    kubectl("scale", "deployment/web", "--replicas=6")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    eventually(lambda: spread(kubectl, "app=web") == {"east": 3, "west": 3})

    kubectl("set", "image", "deployment/web", "web=example/web:2")
    kubectl("rollout", "status", "deployment/web", "--timeout=90s")
    assert len(kubectl("rollout", "history", "deployment/web").strip().splitlines()) >= 4
    kubectl("rollout", "undo", "deployment/web")
    kubectl("rollout", "status", "deployment/web", "--timeout=90s")
    images = {pod["spec"]["containers"][0]["image"] for pod in ready_pods(kubectl, "app=web")}
    assert images == {"example/web:1"}
    kubectl("rollout", "restart", "deployment/web")
    kubectl("rollout", "status", "deployment/web", "--timeout=90s")

    described = kubectl("describe", "deployment", "web")
    assert "NewReplicaSet:" in described and "ScalingReplicaSet" in described
    table = kubectl("get", "deploy,rs,pods")
    assert "deployment.apps/web" in table and "replicaset.apps/web-" in table and "pod/web-" in table

    kubectl("delete", "deployment", "web")
    for name in ("host", "east", "west"):
        eventually(lambda name=name: _nothing_left(fleet.member(name).within(kubectl.namespace)), 60)


def _nothing_left(kubectl: Kubectl) -> bool:
    return not kubectl.items("deployments,replicasets,pods")


def test_never_more_than_one_pod_is_missing(fleet: RunningFleet, kubectl: Kubectl) -> None:
    """Behaviour 24: over both members together, with maxSurge 0 and maxUnavailable 1."""
    kubectl("apply", "-f", "-", stdin=manifest("web", 4))
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    watch = kubectl.start("get", "deployment", "web", "-w", "-o", "json")
    try:
        kubectl("set", "image", "deployment/web", "web=example/web:2")
        kubectl("rollout", "status", "deployment/web", "--timeout=90s")
    finally:
        watch.terminate()
    seen = _events(watch)
    assert len(seen) > 4
    for event in seen:
        status = event["status"]
        assert status.get("availableReplicas", 0) >= 3, status
        assert status.get("replicas", 0) <= 4, status


def _events(watch: subprocess.Popen[str]) -> list[dict[str, Any]]:
    text = watch.communicate(timeout=20)[0]
    decoder, events, at = json.JSONDecoder(), [], 0
    while at < len(text):
        try:
            event, at = decoder.raw_decode(text, at)
        except ValueError:
            break
        events.append(event)
        while at < len(text) and text[at].isspace():
            at += 1
    return events
