"""`workloads/explain` (the scheduler's view), `clusters/forget`, `/reclock/sources` (discovery's), `/reclock/top` (the clock's), as JSON."""

from __future__ import annotations

import grpc
import msgspec
from aiohttp import web
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from reclock.discovery.v1 import discovery_pb2, discovery_pb2_grpc
from reclock.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.aggregator.clock.clocks import Clocks
from services.aggregator.pages.operations import Operations
from services.aggregator.rpc.stats import stats
from services.aggregator.types import Call
from services.common.errors import from_rpc, method_not_allowed, unavailable
from services.common.kube.client import KubeClient
from services.common.kube.resource import Resource

WORKLOADS = Resource("reclock.dev", "v1alpha1", "workloads", "Workload")
SOURCES_PATH = "/reclock/sources"
TOP_PATH = "/reclock/top"
TIMEOUT = 10.0


class Pages:
    """The front authorises: `get` on `workloads/explain`, `create` on `clusters/forget`, `get` on the paths."""

    def __init__(
        self,
        host: KubeClient,
        placement: scheduler_pb2_grpc.PlacementServiceStub,
        discovery: discovery_pb2_grpc.DiscoveryServiceStub,
        operations: Operations | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self.operations = operations
        self._clocks = clocks
        self._host = host
        self._placement = placement
        self._discovery = discovery

    async def explain(self, call: Call) -> web.Response:
        """GET …/workloads/NAME/explain: the workload, and one verdict per member."""
        if call.info.verb != "get":
            raise method_not_allowed("workloads/explain takes a GET")
        workload = await self._host.get(WORKLOADS, call.info.namespace, call.info.name)
        owner = workload["spec"]["owner"]
        request = scheduler_pb2.ExplainRequest(
            owner=scheduler_pb2.OwnerRef(
                api_version=owner["apiVersion"],
                kind=owner["kind"],
                namespace=call.info.namespace,
                name=owner["name"],
                uid=owner["uid"],
            )
        )
        try:
            answer = await self._placement.Explain(request, timeout=TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, "asking the scheduler") from error
        return _json(answer)

    async def forget(self, call: Call) -> web.Response:
        """POST …/clusters/NAME/forget: the lost cluster will not come back; its workloads may move at once."""
        if call.info.verb != "create":
            raise method_not_allowed("clusters/forget takes a POST")
        try:
            await self._discovery.ForgetCluster(
                discovery_pb2.ForgetClusterRequest(name=call.info.name), timeout=TIMEOUT
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, f"forgetting cluster {call.info.name}") from error
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return web.Response(body=msgspec.json.encode(status), content_type="application/json")

    async def sources(self, call: Call) -> web.Response:
        """GET /reclock/sources: sources of clusters that cannot be read now."""
        try:
            answer = await self._discovery.ListClusters(discovery_pb2.ListClustersRequest(), timeout=TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, "asking discovery") from error
        answer.ClearField("clusters")
        return _json(answer)

    async def top(self, call: Call) -> web.Response:
        """GET /reclock/top: state and sums of the clock on this replica, as `ClockService/Stats`."""
        if call.info.verb != "get":
            raise method_not_allowed(f"{TOP_PATH} takes a GET")
        if self._clocks is None:
            raise unavailable("the clock is starting")
        return _json(stats(self._clocks))


def _json(message: Message) -> web.Response:
    plain = MessageToDict(message, always_print_fields_with_no_presence=True)
    return web.Response(body=msgspec.json.encode(plain), content_type="application/json")
