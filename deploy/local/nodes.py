"""A member's nodes and what KWOK does for them: its configuration, the pods' log file, the Node objects."""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path

import yaml

from deploy.local.paths import KUBERNETES_VERSION

STAGES_DIR = Path(__file__).resolve().parent / "stages"
_WEBPOD = Path(__file__).resolve().parent / "webpod.py"


class PodLog:
    """The one log file that all of a member's containers share, in the format kubelets read."""

    def __init__(self, directory: Path, cluster: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "container.log"
        self.write(f"container started on cluster {cluster}")

    def write(self, line: str) -> None:
        """Appends a line; `kubectl logs -f` shows it at once."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        with open(self.path, "a", encoding="utf-8") as sink:
            sink.write(f"{now} stdout F {line}\n")


def write_kwok_config(path: Path, *, cluster: str, log: Path, rootfs: Path) -> Path:
    """KWOK's answers to logs, exec, attach and port-forward, for every pod of the member."""
    rootfs.mkdir(parents=True, exist_ok=True)
    environment = {"KUBERNETES_CLUSTER": cluster, "PS1": f"{cluster}$ ", "TERM": "xterm"}
    execute = {
        "local": {
            "workDir": str(rootfs),
            "envs": [{"name": name, "value": value} for name, value in environment.items()],
        }
    }
    answers = {
        "ClusterLogs": {"logs": [{"logsFile": str(log), "previousLogsFile": str(log), "follow": True}]},
        "ClusterExec": {"execs": [execute]},
        "ClusterAttach": {"attaches": [{"logsFile": str(log)}]},
        "ClusterPortForward": {"forwards": [{"command": [sys.executable, str(_WEBPOD), cluster]}]},
    }
    documents = [
        {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "all"}, "spec": spec}
        for kind, spec in answers.items()
    ]
    path.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    return path


def kwok_environment(home: Path) -> dict[str, str]:
    """KWOK's environment is what commands run by `kubectl exec` see: nothing of the caller's but PATH."""
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LANG": "C.UTF-8"}


def node(
    cluster: str, number: int, *, member: int, cpu: str = "8", memory: str = "16Gi", pods: str = "110"
) -> dict[str, object]:
    """A Node object; members' nodes carry their cluster's name, for two members' must not clash.

    `member` numbers the clusters: each has pod addresses of its own.
    """
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
        "metadata": {"name": name, "labels": labels, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
        "spec": {"podCIDR": f"172.{16 + member % 16}.{number % 256}.0/24"},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "nodeInfo": {
                "kubeletVersion": KUBERNETES_VERSION,
                "architecture": "amd64",
                "operatingSystem": "linux",
            },
        },
    }
