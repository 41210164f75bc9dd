"""Which objects of one member are Reclock's copies, and of which host objects."""

from __future__ import annotations

import asyncio
from typing import Any

from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import Resource
from services.common.tasks import Tasks

ORIGIN = "reclock.dev/origin"
HOST_UID = "reclock.dev/host-uid"

COPIED = {
    ("apps", "ReplicaSet"): Resource("apps", "v1", "replicasets", "ReplicaSet"),
    ("apps", "StatefulSet"): Resource("apps", "v1", "statefulsets", "StatefulSet"),
    ("apps", "DaemonSet"): Resource("apps", "v1", "daemonsets", "DaemonSet"),
    ("batch", "Job"): Resource("batch", "v1", "jobs", "Job"),
}
"""Kinds whose copies own aggregated objects, by (group, kind)."""


def host_uid(metadata: dict[str, Any], fleet_id: str) -> str:
    """Return the uid of the host object that an object is this fleet's copy of; "" where it is none."""
    if (metadata.get("labels") or {}).get(ORIGIN) != fleet_id:
        return ""
    return str((metadata.get("annotations") or {}).get(HOST_UID, ""))


class Copies:
    """Uids of the copies on one member, both ways. Look-ups cost O(1)."""

    def __init__(self, client: KubeClient, fleet_id: str) -> None:
        self.client = client
        self.to_host: dict[str, str] = {}
        self.to_member: dict[str, str] = {}
        self._fleet_id = fleet_id
        self._tasks = Tasks(f"copies:{client.name}")
        self._informers = [
            Informer(
                client,
                resource,
                label_selector=f"{ORIGIN}={fleet_id}",
                metadata_only=True,
                handler=self._changed,
            )
            for resource in COPIED.values()
        ]

    def start(self) -> None:
        """Follow the member until `close`."""
        for informer in self._informers:
            self._tasks.spawn(informer.run(), name=f"informer:copies:{self.client.name}")

    async def close(self) -> None:
        """Stop following."""
        await self._tasks.close()

    async def wait_synced(self, timeout: float) -> None:
        """Wait until every kind was listed once, at most `timeout` seconds (the member may be away)."""
        waits = [asyncio.ensure_future(informer.synced.wait()) for informer in self._informers]
        _, late = await asyncio.wait(waits, timeout=timeout)
        for wait in late:
            wait.cancel()

    def learn(self, uid: str, host: str) -> None:
        """Note one copy, found by asking the member."""
        self.to_host[uid] = host
        self.to_member[host] = uid

    def _changed(self, type_: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        uid = obj["metadata"]["uid"]
        host = host_uid(obj["metadata"], self._fleet_id)
        if type_ == "DELETED" or not host:
            # Pods outlive their owner by a moment: `to_host` keeps answering for them.
            if self.to_member.get(self.to_host.get(uid, "")) == uid:
                del self.to_member[self.to_host[uid]]
            return
        self.learn(uid, host)
