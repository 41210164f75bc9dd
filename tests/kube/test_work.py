"""The reconcile protocol on real clusters: a worker in bare gRPC, as any language's stubs would do it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import grpc
import msgspec

from deploy.local.fleet import Fleet
from reclock.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common.grpc import channel
from services.common.kube import kubeconfig as kc
from services.common.kube.shape import Shape, shaped
from tests.integration.work_rig import Worker, for_configmaps, violations
from tests.kube.conftest import Kubectl

LABEL = "reclock.dev/namespace"
ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: work-test}
rules:
- {apiGroups: [reclock.dev], resources: [controllers], resourceNames: [crt], verbs: [work]}
- {apiGroups: [""], resources: [configmaps], verbs: [list, watch]}
"""


def address(fleet: Fleet) -> str:
    """gRPC of the reconciler."""
    described = json.loads(fleet.layout.fleet_json.read_text())
    return str(described["services"]["reconciler"]["grpcAddress"])


async def test_each_clusters_root_certificate_is_a_request_of_its_own(
    fleet: Fleet, kubectl: Callable[[Path], Kubectl]
) -> None:
    chan = channel(address(fleet))
    source = pb.Source(
        version="v1", resource="configmaps", for_object=pb.ForObject(), namespaces=["default"],
        field_selector="metadata.name=kube-root-ca.crt",
    )  # fmt: skip
    worker = Worker(rpc.ReconcilerServiceStub(chan), for_configmaps("crt", sources=[source], scope=pb.SCOPE_ALL))
    # A service that has just started waits for the leases of an earlier process to end.
    requests = await worker.requests(3, patience=40)
    assert {(r.cluster, r.namespace, r.name) for r in requests} == {
        (cluster, "default", "kube-root-ca.crt") for cluster in ("", "east", "west")
    }
    for request in requests:
        await worker.done(request)
    east = kubectl(fleet.members["east"].kubeconfig)
    await east("-n", "default", "annotate", "configmap", "kube-root-ca.crt", "example.com/touched=yes")
    again = (await worker.requests(4))[3]
    assert (again.cluster, again.priority) == ("east", 0)
    await worker.done(again)
    await asyncio.sleep(0.3)
    rows = (await rpc.QueueServiceStub(chan).ListQueues(pb.ListQueuesRequest(controller="crt"))).queues
    assert {row.cluster: (row.served, row.depth, row.processing) for row in rows} == {
        "": (1, 0, 0), "east": (2, 0, 0), "west": (1, 0, 0),
    }  # fmt: skip
    await worker.close()

    # What no cluster has, and what no API server selects by, is refused with the field.
    things = pb.Source(group="none.example.com", version="v1", resource="things", for_object=pb.ForObject())
    everywhere = for_configmaps("crt", sources=[things], scope=pb.SCOPE_ALL)
    error = await Worker(rpc.ReconcilerServiceStub(chan), everywhere).refused()
    assert "east, the host, west" in violations(error)["sources[0].resource"]
    unselectable = pb.Source(version="v1", resource="configmaps", field_selector="data.x=1", for_object=pb.ForObject())
    error = await Worker(rpc.ReconcilerServiceStub(chan), for_configmaps("crt", sources=[unselectable])).refused()
    assert "not a known field selector" in violations(error)["sources[0].field_selector"]
    await chan.close()


async def test_the_hosts_rbac_judges_service_accounts(fleet: Fleet, kubectl: Callable[[Path], Kubectl]) -> None:
    host = kubectl(fleet.host.kubeconfig)
    await host("create", "serviceaccount", "worker", "-n", "default")
    await host("apply", "-f", "-", stdin=ROLE)
    token = (await host("create", "token", "worker", "-n", "default")).strip()
    chan = channel(address(fleet))
    stub = rpc.ReconcilerServiceStub(chan)
    error = await Worker(stub, for_configmaps("crt"), token).refused()
    assert error.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "system:serviceaccount:default:worker" in (error.details() or "")
    await host("create", "clusterrolebinding", "work-test", "--clusterrole=work-test", "--serviceaccount=default:worker")
    async with asyncio.timeout(30):
        while True:
            worker = Worker(stub, for_configmaps("crt"), token)
            await worker.until(lambda it=worker: it.seen or it.ended)  # type: ignore[misc]
            if worker.seen:
                break
            await asyncio.sleep(0.5)
    await worker.requests(1)
    await worker.close()
    error = await Worker(stub, for_configmaps("another"), token).refused()
    assert error.code() == grpc.StatusCode.PERMISSION_DENIED and "'another'" in (error.details() or "")
    await chan.close()


async def test_a_namespace_is_a_cluster_for_controllers_and_through_the_front(
    fleet: Fleet, kubectl: Callable[[Path], Kubectl]
) -> None:
    """As provider `namespace` hands it out: the access carries the namespace, and all services keep to it."""
    west = kubectl(fleet.members["west"].kubeconfig)
    await west("create", "namespace", "team-x")
    await west("-n", "team-x", "create", "configmap", "mine")
    whole = kc.resolve(Path(fleet.members["west"].kubeconfig))
    part = msgspec.json.encode(shaped(whole, Shape(namespace="team-x")))
    described = json.loads(fleet.layout.fleet_json.read_text())
    chan = channel(str(described["services"]["discovery"]["grpcAddress"]))
    discovery = discovery_pb2_grpc.DiscoveryServiceStub(chan)
    registration = discovery_pb2.RegisterClusterRequest(name="team-x", kubeconfig=part, labels={LABEL: "team-x"})
    await discovery.RegisterCluster(registration)
    work = channel(address(fleet))
    source = pb.Source(version="v1", resource="configmaps", for_object=pb.ForObject())
    # Optional: a worker that asks for what no cluster of its selector serves is refused, and a namespace has no nodes.
    nodes = pb.Source(
        version="v1", resource="nodes", optional=True, by_label=pb.ByLabel(key="of", naming=pb.Naming(to_host=True))
    )
    worker = Worker(
        rpc.ReconcilerServiceStub(work), for_configmaps("parts", sources=[source, nodes], cluster_selector=f"{LABEL}=team-x")
    )
    try:
        requests = await worker.requests(2, patience=40)
        assert {(r.cluster, r.namespace, r.name) for r in requests} == {
            ("team-x", "team-x", "mine"), ("team-x", "team-x", "kube-root-ca.crt"),
        }  # fmt: skip
        for request in requests:
            await worker.done(request)
        await west("-n", "default", "create", "configmap", "not-mine")
        await west("-n", "team-x", "create", "configmap", "another")
        assert (await worker.requests(3))[2].name == "another"
        front = kubectl(fleet.kubeconfig)
        at = "/clusters/team-x"
        listed = json.loads(await front("get", "--raw", f"{at}/api/v1/configmaps"))["items"]
        assert {item["metadata"]["namespace"] for item in listed} == {"team-x"}
        types = json.loads(await front("get", "--raw", f"{at}/api/v1"))["resources"]
        assert {one["name"] for one in types if not one["namespaced"]} == {"namespaces", "namespaces/status"}
        for path in ("/api/v1/nodes", "/api/v1/namespaces/default", "/api/v1/namespaces/default/configmaps/not-mine"):
            refused = await front.run("get", "--raw", f"{at}{path}")
            assert refused.code != 0
            assert "NotFound" in refused.err, refused.err
    finally:
        await worker.close()
        await discovery.DeregisterCluster(discovery_pb2.DeregisterClusterRequest(name="team-x"))
        await west("delete", "namespace", "team-x", "--wait=false")
        await west("-n", "default", "delete", "configmap", "not-mine", "--ignore-not-found")

    async def left() -> bool:
        clusters = (await discovery.ListClusters(discovery_pb2.ListClustersRequest())).clusters
        return "team-x" not in {cluster.name for cluster in clusters}

    async with asyncio.timeout(60):  # what Reclock made there was nothing: it is released
        for _ in range(600):
            if await left():
                break
            await asyncio.sleep(0.1)
    assert await left()
    await chan.close()
    await work.close()
