"""Watches of all clusters at once: each state once, versions strictly growing."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kube.session.tools import Kubectl, cluster_of, eventually, ready_pods


class Watch:
    """Events of a `kubectl get --raw` watch, collected as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.events: list[dict[str, Any]] = []
        self._process = process
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def types(self, name: str) -> list[str]:
        return [event["type"] for event in list(self.events) if event["object"]["metadata"]["name"] == name]

    def versions(self) -> list[int]:
        return [int(event["object"]["metadata"]["resourceVersion"]) for event in list(self.events)]


@contextmanager
def watching(kubectl: Kubectl, query: str = "") -> Iterator[Watch]:
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods?watch=true&{query}"
    process = Kubectl(kubectl.binary, kubectl.kubeconfig).start("get", "--raw", path)
    try:
        yield Watch(process)
    finally:
        process.terminate()
        process.wait(10)


def test_each_state_once_and_versions_grow(kubectl: Kubectl) -> None:
    # From a version on: what a watch without one finds comes by key, and kubectl may begin when there is something.
    now = json.loads(kubectl("get", "--raw", f"/api/v1/namespaces/{kubectl.namespace}/pods"))["metadata"]["resourceVersion"]
    with watching(kubectl, f"resourceVersion={now}") as watch:
        kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=4")
        kubectl("rollout", "status", "deployment/web", "--timeout=60s")
        kubectl("scale", "deployment", "web", "--replicas=1")
        eventually(lambda: len(kubectl.items("pods")) == 1, 30)
        kubectl("delete", "deployment", "web")
        eventually(lambda: not kubectl.items("pods"), 30)
        eventually(lambda: sum(event["type"] == "DELETED" for event in watch.events) == 4, 15)
    versions = watch.versions()
    assert versions == sorted(set(versions)), "fleet versions must grow strictly"
    assert {cluster_of(event["object"]) for event in watch.events} == {"east", "west"}
    for name in {event["object"]["metadata"]["name"] for event in watch.events}:
        types = watch.types(name)
        assert types[0] == "ADDED" and types[-1] == "DELETED"
        assert types.count("ADDED") == 1 and types.count("DELETED") == 1


def test_label_taken_off_shows_deleted(kubectl: Kubectl) -> None:
    kubectl("run", "one", "--image=example/web:1", "--labels=app=web")
    with watching(kubectl, "labelSelector=app%3Dweb") as watch:
        eventually(lambda: "ADDED" in watch.types("one"), 20)
        kubectl("label", "pod", "one", "app-")
        eventually(lambda: watch.types("one")[-1] == "DELETED", 20)
        kubectl("label", "pod", "one", "app=web")
        eventually(lambda: watch.types("one")[-1] == "ADDED", 20)


def test_field_selector_on_a_node(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=4")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    node = ready_pods(kubectl, "app=web")[0]["spec"]["nodeName"]
    with watching(kubectl, f"fieldSelector=spec.nodeName%3D{node}") as watch:
        expected = {
            pod["metadata"]["name"]
            for pod in ready_pods(kubectl, "app=web")
            if pod["spec"]["nodeName"] == node
        }
        eventually(
            lambda: (
                {e["object"]["metadata"]["name"] for e in watch.events if e["type"] == "ADDED"} == expected
            ),
            20,
        )
        kubectl("delete", "deployment", "web")
        eventually(
            lambda: (
                {e["object"]["metadata"]["name"] for e in watch.events if e["type"] == "DELETED"} == expected
            ),
            30,
        )
    assert all(event["object"]["spec"]["nodeName"] == node for event in watch.events)


def test_kubectl_watch_prints_tables(kubectl: Kubectl) -> None:
    process = kubectl.start("get", "pods", "-w")
    try:
        kubectl("run", "one", "--image=example/web:1")
        kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=30s")
        kubectl("delete", "pod", "one")
    finally:
        process.terminate()
    lines = process.communicate(timeout=10)[0].splitlines()
    assert sum(line.startswith("NAME") for line in lines) == 1
    assert sum(line.startswith("one ") for line in lines) >= 3
