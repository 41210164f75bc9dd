"""Which objects of one member are Reclock's copies, and of which host objects."""

from __future__ import annotations

from collections import OrderedDict
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

GONE = 10_000
"""Copies of one member that are remembered after they went; CronJobs make many."""


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
        self._gone: OrderedDict[str, None] = OrderedDict()
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

    def learn(self, uid: str, host: str) -> None:
        """Note one copy."""
        self.to_host[uid] = host
        self.to_member[host] = uid
        self._gone.pop(uid, None)

    def _changed(self, type_: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        uid = obj["metadata"]["uid"]
        host = host_uid(obj["metadata"], self._fleet_id)
        if type_ != "DELETED" and host:
            self.learn(uid, host)
        else:
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        """Pods outlive their owner by a moment: `to_host` answers for the last ones that went."""
        host = self.to_host.get(uid)
        if host is None:
            return
        if self.to_member.get(host) == uid:
            del self.to_member[host]
        self._gone[uid] = None
        self._gone.move_to_end(uid)
        if len(self._gone) > GONE:
            self.to_host.pop(self._gone.popitem(last=False)[0], None)
