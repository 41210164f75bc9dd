"""What every kind of write needs, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reclock.scheduler.v1 import scheduler_pb2_grpc
from services.aggregator.aggregations import Aggregations
from services.aggregator.clock.clocks import ResourceClocks
from services.aggregator.owners import Owners
from services.aggregator.reads import Reads
from services.aggregator.types import Aggregated, Call
from services.common.fleet import FleetWatcher
from services.common.kube.client import KubeClient

SETTLE = 5.0  # seconds that an answer waits for its write to be in the log
MEMBER_TIMEOUT = 34.0  # seconds for one call to a member: Kubernetes' own request time-out for writes


@dataclass(slots=True)
class WriteContext:
    """The collaborators; owned by the application, shared by all writes."""

    host: KubeClient
    fleet: FleetWatcher
    fleet_id: str
    clock: ResourceClocks
    aggregations: Aggregations
    owners: Owners
    reads: Reads
    placement: scheduler_pb2_grpc.PlacementServiceStub
    identity: Callable[[Call, Aggregated], dict[str, str]]
    """Headers that make a member act as the caller (`authorization: Member`), else none."""
