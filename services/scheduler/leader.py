"""One manager leads: a `coordination.k8s.io` Lease on the host, as client-go's leader election keeps it.

Others' clocks are not trusted: a lease has ended when it was not seen to change for its length of our own time.
A leader counts its own from before the call that took or renewed it, by a clock that goes on while the machine sleeps,
and acts for two thirds of it: the rest is for what it has sent to arrive. `remaining` is what everybody who acts in
its name asks right before each call that counts, since a process may stop between any two of its lines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.resource import LEASES
from services.scheduler.clock import boottime

log = logging.getLogger(__name__)

NAME = "reclock-scheduler"
SHARE = 2 / 3
"""Part of the lease in which the leader acts."""


class Leader:
    """Runs `lead` while this process leads; `lead` is cancelled when the lease is lost."""

    def __init__(
        self, client: KubeClient, *, namespace: str, seconds: float, lead: Callable[[], Awaitable[None]],
        now: Callable[[], float] = boottime,
    ) -> None:  # fmt: skip
        self._client, self._namespace, self._seconds, self._lead = client, namespace, seconds, lead
        self._now = now
        self.identity = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
        self.leading = False
        self.holder = ""
        """Who leads, as far as known."""
        self.last_error = ""
        self._until = float("-inf")
        self._seen: tuple[Any, ...] = ()
        self._seen_at = 0.0
        self._lease: dict[str, Any] | None = None

    def remaining(self) -> float:
        """Seconds for which this process may still act as the leader; 0 when it may not."""
        return max(self._until - self._now(), 0.0)

    async def run(self) -> None:
        """Try to lead, lead, and again, until cancelled."""
        while True:
            if await self._within(self._seconds) and self.remaining():
                await self._lead_while_renewed()
            else:
                await asyncio.sleep(self._seconds / 4)

    async def _within(self, limit: float) -> bool:
        """Take or renew the lease in so many seconds; says whether it is ours."""
        try:
            async with asyncio.timeout(limit):
                return await self._try()
        except TimeoutError:
            # Whether it was written is not known: it is read before the next try.
            self._lease, self.last_error = None, "the host does not answer"
            return False

    async def _lead_while_renewed(self) -> None:
        log.info("leads now, as %s", self.identity)
        self.leading = True
        work = asyncio.ensure_future(self._lead())
        try:
            while (left := self.remaining()) > 0:
                done, _ = await asyncio.wait({work}, timeout=min(self._seconds / 6, left))
                if done:
                    await work
                    raise RuntimeError("the leader's work ended by itself")
                ours = await self._within(min(self._seconds / 4, self.remaining()))
                if not ours and self.holder != self.identity:
                    self._until = float("-inf")
            log.error("does not lead any more: %s", self.last_error or f"{self.holder} does")
        finally:
            self.leading = False
            work.cancel()
            await asyncio.wait({work})
            self._until = float("-inf")

    async def _try(self) -> bool:
        """Take or renew the lease; says whether it is ours."""
        try:
            return await self._take()
        except StatusError as error:
            if error.code != 409 and error.message != self.last_error:
                log.warning("the leader's lease cannot be had: %s", error.message)
            self.last_error = error.message
            self._lease = None
            return False

    async def _take(self) -> bool:
        if self._lease is None or self.holder != self.identity:
            try:
                self._lease = await self._client.get(LEASES, self._namespace, NAME)
            except StatusError as error:
                if error.code != 404:
                    raise
                fresh = {
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": NAME, "namespace": self._namespace}, "spec": self._spec({}),
                }  # fmt: skip
                asked = self._now()
                return self._ours(await self._client.create(LEASES, self._namespace, fresh), asked)
        spec = self._lease.get("spec") or {}
        self.holder = spec.get("holderIdentity") or ""
        if self.holder not in ("", self.identity) and not self._ended(spec):
            return False
        self._lease["spec"] = self._spec(spec)
        asked = self._now()
        return self._ours(await self._client.update(LEASES, self._namespace, self._lease), asked)

    def _ours(self, lease: dict[str, Any], asked: float) -> bool:
        self._until = asked + self._seconds * SHARE
        self._lease, self.holder, self.last_error = lease, self.identity, ""
        return True

    def _ended(self, spec: dict[str, Any]) -> bool:
        now = asyncio.get_running_loop().time()
        seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
            return False
        return now - self._seen_at > float(spec.get("leaseDurationSeconds") or self._seconds)

    def _spec(self, old: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changed = old.get("holderIdentity") != self.identity
        return {
            **old,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(self._seconds),
            "renewTime": now,
            "acquireTime": now if changed else old.get("acquireTime", now),
            "leaseTransitions": (old.get("leaseTransitions") or 0) + int(changed and bool(old)),
        }

    async def resign(self) -> None:
        """Give the lease up, so that the next leader need not wait; after `run` was cancelled."""
        if self._lease is None or self.holder != self.identity:
            return
        self._lease["spec"]["holderIdentity"] = ""
        self._lease["spec"]["leaseDurationSeconds"] = 1
        try:
            await self._client.update(LEASES, self._namespace, self._lease)
        except StatusError as error:
            log.info("the lease was not given up, it ends by itself: %s", error.message)
        self._lease, self.holder = None, ""
