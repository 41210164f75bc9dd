"""Tells the owner of a workload what happened, as Kubernetes Events on the host."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from datetime import UTC, datetime
from typing import Any

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.resource import EVENTS
from services.scheduler.workload import Workload

log = logging.getLogger(__name__)

CONTROLLER = "reclock.dev/scheduler"
BACKLOG = 1000


class EventWriter:
    """Writes in the background; what does not fit into its bounded queue is counted and left out."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue(BACKLOG)
        self._instance = f"{socket.gethostname()}-{os.getpid()}"
        self.dropped = 0

    def observe(self, workload: Workload, reason: str, message: str, good: bool) -> None:
        """Take an event; never blocks. Good news is left to the reconciler, which says where the copies are."""
        owner = workload.owner_ref
        if good or not owner.get("uid"):
            return
        now = datetime.now(UTC)
        event = {
            "apiVersion": "v1", "kind": "Event",
            "metadata": {
                "name": f"{workload.owner.name[:200]}.{int(now.timestamp() * 1e6):x}",
                "namespace": workload.key.namespace,
            },
            "involvedObject": {
                "apiVersion": owner.get("apiVersion"), "kind": workload.owner.kind, "name": workload.owner.name,
                "namespace": workload.key.namespace, "uid": owner["uid"],
            },
            "reason": reason, "message": message[:1000], "type": "Warning",
            "action": "Place", "reportingComponent": CONTROLLER, "reportingInstance": self._instance,
            "source": {"component": CONTROLLER},
            "firstTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "lastTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "count": 1,
        }  # fmt: skip
        if self._queue.full():
            self.dropped += 1
        else:
            self._queue.put_nowait((workload.key.namespace, event))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            namespace, event = await self._queue.get()
            try:
                await self._client.create(EVENTS, namespace, event)
            except StatusError as error:
                log.info("an event on %s was not written: %s", event["involvedObject"]["name"], error.message)
