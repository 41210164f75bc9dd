"""Kubernetes events about host objects. They are told once, never awaited by a reconcile, and may be dropped."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.resource import Resource
from services.reconciler.names import Obj

log = logging.getLogger(__name__)

EVENTS_V1 = Resource("events.k8s.io", "v1", "events", "Event")
WAITING_MAX = 1000
SAID_MAX = 10_000
NAME_MAX = 200
"""Of an object's name in that of its event, which has a random part too and may have 253 characters."""


class Recorder:
    """Writes events from a bounded queue; `run` is its task."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._queue: asyncio.Queue[Obj] = asyncio.Queue(WAITING_MAX)
        self._said: dict[tuple[str, str], str] = {}
        self._instance = f"{socket.gethostname()}-{os.getpid()}"[:63]

    def say(self, obj: Mapping[str, Any], reason: str, message: str, *, warning: bool = False) -> None:
        """Queue an event, unless it is what was said of this object and reason before."""
        meta = obj["metadata"]
        key = (meta["uid"], reason)
        if self._said.get(key) == message:
            return
        if len(self._said) >= SAID_MAX:
            self._said.clear()
        self._said[key] = message
        namespace = meta.get("namespace", "default")
        event = {
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": f"{meta['name'][:NAME_MAX].rstrip('-.')}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "regarding": {
                "apiVersion": obj["apiVersion"], "kind": obj["kind"], "namespace": meta.get("namespace", ""),
                "name": meta["name"], "uid": meta["uid"],
            },
            "type": "Warning" if warning else "Normal", "reason": reason, "action": reason,
            "note": message[:1024], "reportingController": "reclock.dev/reconciler",
            "reportingInstance": self._instance,
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }  # fmt: skip
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("too many events wait for the host: dropping %s of %s", reason, meta["name"])

    async def run(self) -> None:
        """Write until cancelled; what the host refuses is logged and dropped."""
        while True:
            event = await self._queue.get()
            try:
                await self._client.create(EVENTS_V1, event["metadata"]["namespace"], event)
            except StatusError as error:
                log.info("the host did not take event %s: %s", event["reason"], error.message)
