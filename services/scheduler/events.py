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


def event(involved: dict[str, Any], reason: str, message: str, instance: str, *, good: bool = False) -> dict[str, Any]:
    """A core/v1 Event about the object that `involved` refers to."""
    now = datetime.now(UTC)
    seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {
            "name": f"{involved['name'][:200].rstrip('-.')}.{int(now.timestamp() * 1e6):x}", "namespace": involved["namespace"],
        },
        "involvedObject": involved, "reason": reason, "message": message[:1000],
        "type": "Normal" if good else "Warning", "action": "Place", "reportingComponent": CONTROLLER,
        "reportingInstance": instance, "source": {"component": CONTROLLER}, "firstTimestamp": seconds,
        "lastTimestamp": seconds, "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "count": 1,
    }  # fmt: skip


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
        # Events end after an hour; a log tells afterwards what kept a workload from its place.
        log.info("%s %s/%s: %s: %s", workload.owner.kind, workload.key.namespace, workload.owner.name, reason, message[:500])
        involved = {
            "apiVersion": owner.get("apiVersion"), "kind": workload.owner.kind, "name": workload.owner.name,
            "namespace": workload.key.namespace, "uid": owner["uid"],
        }  # fmt: skip
        made = event(involved, reason, message, self._instance)
        if self._queue.full():
            self.dropped += 1
        else:
            self._queue.put_nowait((workload.key.namespace, made))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            namespace, event = await self._queue.get()
            try:
                await self._client.create(EVENTS, namespace, event)
            except StatusError as error:
                log.info("an event on %s was not written: %s", event["involvedObject"]["name"], error.message)
