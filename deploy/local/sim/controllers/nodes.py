"""Nodes: a simulated one is Ready as soon as it is registered, and knows what its pods take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deploy.local.sim import quantity
from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.objects import decode
from deploy.local.sim.store import Change, Collection, State
from deploy.local.sim.types import Object

_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
_EMPTY_INFO = dict.fromkeys(("machineID", "systemUUID", "bootID"), "")


class Nodes(Controller):
    """Plays the registration of kubelets."""

    watches = ("nodes",)

    def keys_of(self, collection: Collection, change: Change) -> Iterable[str]:
        return (change.state.key,) if change.kind == "ADDED" else ()

    def reconcile(self, key: str) -> None:
        node = self.find("nodes", key)
        if node is None or is_ready(node):
            return
        now = self.core.now()
        status = node.get("status") or {}
        status["conditions"] = [
            {
                "type": kind,
                "status": value,
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
                "reason": reason,
                "message": message,
            }
            for kind, value, reason, message in _CONDITIONS
        ]
        status.setdefault(
            "addresses",
            [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": key}],
        )
        status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 10250}})
        status["nodeInfo"] = {
            **_EMPTY_INFO,
            "kernelVersion": "simulated",
            "osImage": "Reclock local fleet",
            "containerRuntimeVersion": "sim://1",
            "kubeletVersion": "v1.34.4",
            "kubeProxyVersion": "v1.34.4",
            "operatingSystem": "linux",
            "architecture": "amd64",
        }
        self.set_status("nodes", key, status)


def is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def node_object(
    cluster: str, number: int, *, cpu: str = "8", memory: str = "16Gi", pods: str = "110"
) -> Object:
    """A Node as a kubelet registers it; the names carry the cluster's, for two members' nodes must not clash."""
    name = f"{cluster}-n{number}"
    capacity = {"cpu": cpu, "memory": memory, "pods": pods, "ephemeral-storage": "100Gi"}
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": cluster,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": capacity, "allocatable": dict(capacity)},
    }


def requests_of(spec: dict[str, Any]) -> tuple[int, int]:
    """(millicores, bytes) that a pod asks for: its containers together, or its largest init container."""
    total = [0, 0]
    for container in spec.get("containers") or ():
        wanted = (container.get("resources") or {}).get("requests") or {}
        total[0] += quantity.cpu(wanted.get("cpu", "0"))
        total[1] += quantity.memory(wanted.get("memory", "0"))
    for container in spec.get("initContainers") or ():
        wanted = (container.get("resources") or {}).get("requests") or {}
        total = [
            max(total[0], quantity.cpu(wanted.get("cpu", "0"))),
            max(total[1], quantity.memory(wanted.get("memory", "0"))),
        ]
    return total[0], total[1]


def pod_node(state: State) -> str:
    """The node that a pod is bound to, without decoding a pod that is on none."""
    if b'"nodeName":' not in state.raw:
        return ""
    return str(decode(state.raw)["spec"].get("nodeName", ""))
