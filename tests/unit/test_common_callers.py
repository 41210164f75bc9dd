"""Who may call what: the tables against the contracts, and what they refuse."""

from __future__ import annotations

import pytest

from reclock.aggregator.v1 import aggregator_pb2
from reclock.discovery.v1 import discovery_pb2
from reclock.reconciler.v1 import peer_pb2, reconciler_pb2
from reclock.scheduler.v1 import scheduler_pb2
from services.common.callers import INTERNAL, NEEDS, refusal


def rpcs() -> set[tuple[str, str]]:
    found = set()
    for module in (aggregator_pb2, discovery_pb2, peer_pb2, reconciler_pb2, scheduler_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            found |= {(service.full_name, method.name) for method in service.methods}
    return found


def test_the_tables_name_rpcs_that_exist_and_all_of_the_admission_service() -> None:
    known = rpcs()
    assert {(s, rpc) for needs in NEEDS.values() for s, names in needs.items() for rpc in names} <= known
    internal = {tuple(method.removeprefix("/").split("/")) for method in INTERNAL}
    assert internal <= known
    admission = "reclock.scheduler.v1.AdmissionService"
    assert {rpc for s, rpc in known if s == admission} == {rpc for s, rpc in internal if s == admission}


@pytest.mark.parametrize(("names", "method", "refused"), [
    ({"reclock-aggregator"}, "/reclock.discovery.v1.DiscoveryService/WatchClusters", False),
    ({"reclock-aggregator"}, "/reclock.discovery.v1.DiscoveryService/RegisterCluster", True),
    ({"reclock-reconciler", "x"}, "/reclock.discovery.v1.DiscoveryService/ReleaseCluster", False),
    ({"someone"}, "/reclock.discovery.v1.DiscoveryService/ReleaseCluster", True),
    ({"someone"}, "/reclock.discovery.v1.DiscoveryService/ForgetCluster", True),
    ({"reclock-aggregator"}, "/reclock.discovery.v1.DiscoveryService/ForgetCluster", False),
    ({"someone"}, "/reclock.aggregator.v1.ClockService/RebuildMarkers", True),
    ({"someone"}, "/reclock.aggregator.v1.ClockService/Stats", False),
    (set(), "/reclock.scheduler.v1.AdmissionService/Heartbeat", True),
    ({"reclock-scheduler"}, "/reclock.scheduler.v1.AdmissionService/Heartbeat", False),
    ({"someone"}, "/reclock.scheduler.v1.PlacementService/Explain", False),
    ({"reclock-discovery"}, "/reclock.scheduler.v1.PlacementService/Submit", True),
    ({"reclock-discovery"}, "/grpc.health.v1.Health/Check", False),
])  # fmt: skip
def test_what_is_refused(names: set[str], method: str, refused: bool) -> None:
    assert bool(refusal(names, method)) is refused
