"""gRPC for users on real clusters: a worker of the SDK and the CLI, over TLS, with the token of a service account alone."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from deploy.local.fleet import Fleet
from reclock import Request, Worker, controller
from reclock.aggregator.v1 import aggregator_pb2, aggregator_pb2_grpc
from reclock.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from reclock.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.kube.conftest import Kubectl

ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: token-worker}
rules:
  - {apiGroups: [reclock.dev], resources: [controllers], resourceNames: [by-token], verbs: [work]}
  - {apiGroups: [reclock.dev], resources: [controllers], verbs: [list]}
  - {apiGroups: [reclock.dev], resources: [clusters], verbs: [list, get]}
  - {apiGroups: [reclock.dev], resources: [workloads], verbs: [list]}
  - {apiGroups: [""], resources: [configmaps], verbs: [list, watch]}
"""


def connect(address: str, credentials: grpc.ChannelCredentials) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(address, credentials, [("grpc.enable_http_proxy", 0)])


async def _others(addresses: dict[str, str], credentials: grpc.ChannelCredentials, who: tuple[tuple[str, str]]) -> None:
    """Scheduler and aggregator judge the same account."""
    async with connect(addresses["scheduler"], credentials) as channel:
        placement = scheduler_pb2_grpc.PlacementServiceStub(channel)
        await placement.List(scheduler_pb2.ListRequest(), metadata=who, timeout=20)
        ref = scheduler_pb2.WorkloadRef(namespace="default", name="web")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await placement.Cancel(scheduler_pb2.CancelRequest(ref=ref), metadata=who, timeout=20)
        assert "cannot delete workloads.reclock.dev 'web' in namespace 'default'" in (refused.value.details() or "")
    async with connect(addresses["aggregator"], credentials) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await aggregator_pb2_grpc.ClockServiceStub(channel).Stats(aggregator_pb2.StatsRequest(), metadata=who, timeout=20)
        assert "cannot get path /reclock/markers/stats" in (refused.value.details() or "")


async def test_a_worker_and_the_cli_with_a_token(fleet: Fleet, kubectl: Callable[[Path], Kubectl], tmp_path: Path) -> None:
    host, east = kubectl(fleet.host.kubeconfig), kubectl(fleet.members["east"].kubeconfig)
    await host("create", "serviceaccount", "token-worker")
    await host("apply", "-f", "-", stdin=ROLE)
    await host("create", "clusterrolebinding", "token-worker", "--clusterrole=token-worker", "--serviceaccount=default:token-worker")
    token = (await host("create", "token", "token-worker", "--duration=10m")).strip()
    (tmp_path / "token").write_text(token)
    described = fleet.describe()
    addresses = {name: one["userAddress"] for name, one in described["services"].items()}
    authority = fleet.layout.state("reclock") / "pki" / "front-ca.crt"
    seen = asyncio.Event()

    @controller(for_="v1/configmaps", selector="by=token", name="by-token")
    async def by_token(request: Request) -> None:
        if str(request) == "east/default/by-token":
            seen.set()

    settings = {
        "front": described["front"], "token_file": str(tmp_path / "token"), "ca_file": str(authority),
        "reconciler": addresses["reconciler"], "tls_ca": str(authority),
    }  # fmt: skip
    environment = {f"RECLOCK_{name.upper()}": value for name, value in settings.items()}

    async def cli(*arguments: str) -> tuple[int | None, str]:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "reclock.cli", *arguments, env={**os.environ, **environment},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out = (await child.communicate())[0].decode()
        return child.returncode, out

    async with Worker(by_token, **settings):
        await east("create", "configmap", "by-token")
        await east("label", "configmap", "by-token", "by=token")
        await asyncio.wait_for(seen.wait(), 60)
        code, out = await cli("queue")
        assert code == 0 and any(line.split()[:2] == ["by-token", "east"] for line in out.splitlines()), out
        code, out = await cli("queue", "pause", "east", "-c", "by-token")
        assert code == 1 and "PERMISSION_DENIED" in out and "cannot update controllers.reclock.dev 'by-token'" in out

    credentials = grpc.ssl_channel_credentials(authority.read_bytes())
    async with connect(addresses["discovery"], credentials) as channel:
        discovery = discovery_pb2_grpc.DiscoveryServiceStub(channel)
        who = (("authorization", f"Bearer {token}"),)
        known = await discovery.ListClusters(discovery_pb2.ListClustersRequest(), metadata=who, timeout=20)
        assert {"east", "west"} <= {one.name for one in known.clusters}
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await discovery.RegisterCluster(discovery_pb2.RegisterClusterRequest(name="mine"), metadata=who, timeout=20)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await _others(addresses, credentials, who)
        await host("delete", "serviceaccount", "token-worker")
        async with asyncio.timeout(60):  # the answer is kept for some seconds
            while True:
                try:
                    await discovery.ListClusters(discovery_pb2.ListClustersRequest(), metadata=who, timeout=20)
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
                    break
                await asyncio.sleep(0.5)
