"""The worker's contact with the manager: when it was last known to be there, kept on the member over restarts.

Safety rests on one order. A heartbeat is counted from the moment at which this worker issued its nonce, and only when
the manager has returned the nonce; the manager counts it from when it got the nonce, which is later. Durations are
measured by CLOCK_BOOTTIME, which goes on through restarts of the process and suspension of the machine; the wall
clock is asked only after a reboot, and a time that lies in the future counts as long ago.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from reclock.scheduler.v1 import scheduler_pb2 as pb
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.identity import identity
from services.common.kube.resource import LEASES
from services.scheduler.clock import boottime
from services.scheduler.ledger import OwnerKey
from services.scheduler.wire import owner_from_proto

log = logging.getLogger(__name__)

NAMESPACE = "kube-system"
FLEET, BOOT, AT, EXCEPTIONS = (
    "reclock.dev/fleet", "reclock.dev/boot-id", "reclock.dev/boot-time", "reclock.dev/fence-exceptions",
)  # fmt: skip
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
GRACE = 15.0
"""Seconds that a worker which has just started waits for the manager, where that is safe."""


def boot_id() -> str:
    """Which boot of the machine `boottime` counts from; "" where that cannot be told."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


class Contact:
    """`last` is the boottime of the last contact; None: there has never been any, nothing is to be fenced."""

    def __init__(
        self, client: KubeClient, cluster: str, *, now: Callable[[], float] = boottime, boot: str | None = None
    ) -> None:
        self._client, self._cluster, self._now = client, cluster, now
        self._name = f"reclock-contact-{cluster}"
        self._boot = boot_id() if boot is None else boot
        self._started = now()
        self.fleet_id = ""
        self.uid = ""
        """Of the cluster that this contact is kept on."""
        self.last: float | None = None
        self.fence_after = 0.0
        self.exceptions: dict[OwnerKey, float] = {}
        self.stored = False
        self.problem = ""
        self._nonce, self._issued = "", 0.0
        self._lease: dict[str, Any] | None = None

    def take(self, request: pb.HeartbeatRequest) -> bool:
        """Take a heartbeat; whether it renews the contact. Followed by `store`, then `issue`."""
        renews = bool(self._nonce) and request.acknowledged == self._nonce
        if renews:
            self.last = self._issued
            self.fleet_id = request.fleet_id
            self.fence_after = request.fence_after.ToNanoseconds() / 1e9
            self.exceptions = {
                owner_from_proto(item.owner): item.fence_after.ToNanoseconds() / 1e9 for item in request.exceptions
            }
        return renews

    def issue(self) -> str:
        """A nonce that is valid until the next one."""
        self._nonce, self._issued = secrets.token_hex(8), self._now()
        return self._nonce

    def is_live(self) -> bool:
        """Whether there is contact now."""
        return self.last is not None and self._now() < self.last + self.fence_after

    def after(self, owner: OwnerKey) -> float:
        """Seconds without contact after which the copy of that owner is stopped: half of the manager's patience."""
        return self.exceptions.get(owner, self.fence_after)

    def is_due(self, owner: OwnerKey) -> bool:
        """Whether the copy of that owner must not run any more."""
        if self.last is None:
            return False
        after = self.after(owner)
        # A worker that has just started gives the manager a moment, but none that the manager does not wait.
        grace = min(self._started + GRACE, self.last + 1.5 * after)
        return self._now() >= max(self.last + after, grace)

    async def store(self) -> None:
        """Write the contact to the member; `stored` says whether it is there, `problem` why not."""
        try:
            await self._write()
            self.stored, self.problem = True, ""
        except StatusError as error:
            self._lease = None
            self.stored, self.problem = False, f"the last contact cannot be kept on the member: {error.message}"

    async def _write(self) -> None:
        if self._lease is None:
            await self._identify()
        lease = self._lease or await self._read() or {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name, "namespace": NAMESPACE},
        }  # fmt: skip
        assert self.last is not None
        moment = datetime.fromtimestamp(time.time() - (self._now() - self.last), UTC)
        exceptions = [[*owner, after] for owner, after in sorted(self.exceptions.items())]
        lease["metadata"]["annotations"] = {
            **(lease["metadata"].get("annotations") or {}), FLEET: self.fleet_id, BOOT: self._boot,
            AT: repr(self.last), EXCEPTIONS: msgspec.json.encode(exceptions).decode(),
        }  # fmt: skip
        lease["spec"] = {
            "holderIdentity": self._cluster, "renewTime": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "leaseDurationSeconds": max(1, round(self.fence_after)),
        }  # fmt: skip
        if "resourceVersion" in lease["metadata"]:
            self._lease = await self._client.update(LEASES, NAMESPACE, lease)
        else:
            self._lease = await self._client.create(LEASES, NAMESPACE, lease)

    async def _identify(self) -> None:
        """Read which cluster this is; one that does not let us see it is taken for the one that is meant."""
        try:
            self.uid = await identity(self._client)
        except StatusError as error:
            if error.code != 403:
                raise
            self.uid = ""

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await self._client.get(LEASES, NAMESPACE, self._name)
        except StatusError as error:
            if error.code == 404:
                return None
            raise

    async def restore(self) -> None:
        """Take the contact that an earlier process kept. StatusError while the member does not answer."""
        await self._identify()
        lease = await self._read()
        if lease is None or self.last is not None:
            return
        self._lease = lease
        try:
            self._take_kept(lease)
        except (KeyError, ValueError, TypeError, msgspec.DecodeError):
            log.exception("the last contact on the member is unreadable: it counts as long ago")
            self.last = float("-inf")

    def _take_kept(self, lease: Mapping[str, Any]) -> None:
        annotations: Mapping[str, str] = lease["metadata"].get("annotations") or {}
        spec = lease.get("spec") or {}
        self.fleet_id = annotations.get(FLEET, "")
        self.fence_after = float(spec.get("leaseDurationSeconds") or 0)
        self.exceptions = {
            OwnerKey(*item[:3]): float(item[3])
            for item in msgspec.json.decode(annotations.get(EXCEPTIONS, "[]").encode())
        }
        self.last = self._kept(annotations, str(spec.get("renewTime") or ""))

    def _kept(self, annotations: Mapping[str, str], renewed: str) -> float:
        now = self._now()
        if self._boot and annotations.get(BOOT) == self._boot:
            return min(float(annotations[AT]), now)
        age = time.time() - datetime.fromisoformat(renewed.replace("Z", "+00:00")).timestamp() if renewed else -1.0
        return now - age if age >= 0 else float("-inf")
