"""The worker role: admits for one member, beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from reclock.scheduler.v1 import scheduler_pb2_grpc
from services.common.kube.client import KubeClient
from services.common.service import Service
from services.scheduler.admission import LocalAdmission
from services.scheduler.admission_api import AdmissionServicer, Signal
from services.scheduler.clock import SystemClock
from services.scheduler.config import SchedulerConfig
from services.scheduler.feed import MemberFeed
from services.scheduler.fence import Fence
from services.scheduler.member import MemberState

EXPIRY_PERIOD = 1.0


class Worker(Service[SchedulerConfig]):
    """Reads its member's nodes and pods and answers `AdmissionService`."""

    name = "scheduler-worker"

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._client: KubeClient | None = None
        self._clock = SystemClock()
        self._members: dict[str, LocalAdmission] = {}
        self._signals = {config.cluster: Signal()}

    async def start(self) -> None:
        """See Service."""
        config, cluster = self.config, self.config.cluster
        path = Path(config.member.kubeconfig) if config.member.kubeconfig else Path()
        self._client = await KubeClient.connect(path, name=cluster, user_agent="reclock-scheduler-worker")
        signal = self._signals[cluster]
        state = MemberState(cluster, on_change=signal.changed)
        feed = MemberFeed(self._client, state)
        fence = Fence(self._client, cluster) if config.fence else None
        # Reservations of an earlier process may still be confirmed: nothing new until they have ended.
        self._members[cluster] = LocalAdmission(
            state, self._clock, ttl=config.reservation_ttl, clash=feed.clash, problem=feed.problem,
            settle=config.reservation_ttl, lift=fence.lift if fence is not None else None,
        )  # fmt: skip
        self.checks[f"member {cluster}"] = lambda: feed.problem() or None
        self.grpc.add(
            scheduler_pb2_grpc.add_AdmissionServiceServicer_to_server,
            AdmissionServicer(self._members, self._signals, fence),
            "reclock.scheduler.v1.AdmissionService",
        )
        feed.start(self.tasks)
        if fence is not None:
            fence.start(self.tasks)
        self.tasks.spawn(self._expire(state), "expiry", root=True)

    async def _expire(self, state: MemberState) -> None:
        while True:
            await asyncio.sleep(EXPIRY_PERIOD)
            state.expire(self._clock.monotonic())

    async def close(self) -> None:
        """See Service."""
        if self._client is not None:
            await self._client.close()
