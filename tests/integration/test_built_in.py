"""The built-in controllers' own connection where the port has mutual TLS, which asks everybody else for a certificate."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from pathlib import Path

import pytest
import yaml

from deploy.local.ports import Ports
from deploy.local.probes import http_ready, until
from reclock.discovery.v1 import discovery_pb2_grpc
from services.common.config import TLS
from services.common.grpc import GrpcServer
from tests.integration.work_fleet import HOST, FakeFleet
from tests.integration.work_processes import FakeDiscovery, Replica
from tests.unit.kube_fake import make_ca, make_pair, pem


def certificates(directory: Path) -> dict[str, str]:
    """One certificate for both services, in the words of their configuration."""
    key, ca = make_ca()
    certificate, private = make_pair(key, "ca", "reclock-reconciler")
    files = {"ca": pem(ca), "cert": certificate, "key": private}
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return {name: str(directory / name) for name in files}


def modes(directory: Path) -> list[int]:
    """Of the directories in which a worker's socket is."""
    return [socket.parent.stat().st_mode & 0o777 for socket in directory.glob("reclock-*/work")]


async def test_they_connect_over_a_private_socket_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Short: the path of a socket has little room.
    with tempfile.TemporaryDirectory(prefix="rt-") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        await _live_once(tmp_path, Path(directory))


async def _live_once(tmp_path: Path, directory: Path) -> None:
    tls = certificates(tmp_path)
    clusters = FakeFleet()
    clusters.add("east")
    await clusters.start()
    discovery = FakeDiscovery(clusters)
    discovery.server = GrpcServer("127.0.0.1:0", TLS(**tls))
    discovery.server.add(
        discovery_pb2_grpc.add_DiscoveryServiceServicer_to_server, discovery, "reclock.discovery.v1.DiscoveryService"
    )
    await discovery.server.start()
    (tmp_path / "host.yaml").write_text(yaml.safe_dump(clusters.kubeconfig(HOST)))
    ports = Ports()
    address = f"127.0.0.1:{ports.take()}"
    replica = Replica(tmp_path, 0, {
        "host": {"kubeconfig": str(tmp_path / "host.yaml")}, "discoveryAddress": discovery.server.bound, "tls": tls,
        "httpAddress": address,
    })  # fmt: skip
    try:
        await replica.start()
        await until(http_ready(f"http://{address}/readyz"), "the reconciler is ready")
        names = set(re.findall(r"controller (\S+): worker \S+ \(reclock:built-in\) has come", replica.log))
        assert names == {"reclock-workloads", "reclock-dependencies", "reclock-namespaces", "reclock-garbage"}
        assert modes(directory) == [0o700]
        await replica.end(signal.SIGTERM)
        assert os.listdir(directory) == [] and replica.child is not None and replica.child.returncode == 0
    finally:
        if replica.child is not None and replica.child.returncode is None:
            await replica.end(signal.SIGKILL)
        await discovery.server.stop(0)
        await clusters.stop()
        ports.release()
