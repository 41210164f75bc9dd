"""Clusters that were registered over gRPC: kept in a Secret on the host, and in the state file.

A provider (`static`, source `registered`). Its first reading comes when the Secret, or without it the state
file, has been read, so that a restart disengages nobody.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from services.common.errors import StatusError, unavailable
from services.common.kube.client import KubeClient
from services.common.kube.kubeconfig import KubeconfigError
from services.common.kube.resource import NAMESPACES, SECRETS
from services.common.tasks import Backoff
from services.discovery.names import bad_label, is_dns_label
from services.discovery.providers.base import Problem, Publish, Reading, embedded, found
from services.discovery.state import State, registration

log = logging.getLogger(__name__)

NAMESPACE, SECRET = "reclock-system", "registered-clusters"
ID = "static#registered"
HOST_WAIT = 5.0
"""Seconds that the Secret is waited for before the state file's registrations are taken."""


class Registration(msgspec.Struct):
    """What is kept of one."""

    kubeconfig: dict[str, Any]
    labels: dict[str, str] = {}


class Registrations:
    """Owned by the event loop; changes are serialised by a lock."""

    def __init__(
        self, host: KubeClient | None, state: State, save: Callable[[], Awaitable[bool]]
    ) -> None:
        """`save` writes the state file now, and says whether there is one and it was written."""
        self.id = ID
        self._host = host
        self._save = save
        self.known = readable(state.registrations, "the state file")
        self.unsaved = state.unsaved
        self._loaded = host is None
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()

    async def run(self, publish: Publish) -> None:
        """Publish the registrations; with a host, read the Secret as soon as it can be."""
        loader = asyncio.create_task(self._load(), name="registrations/load") if self._host else None
        try:
            if loader is not None:
                await asyncio.wait({loader}, timeout=HOST_WAIT)
            while True:
                publish(self._reading())
                await self._changed.wait()
                self._changed.clear()
        finally:
            if loader is not None:
                loader.cancel()

    def _reading(self) -> Reading:
        clusters = tuple(
            found(name, entry["kubeconfig"], "registered", entry.get("labels"))
            for name, entry in sorted(self.known.items())
        )
        if self._loaded:
            return Reading(clusters)
        problem = Problem("registered", "the host cannot be read yet; known registrations are kept")
        return Reading(clusters, (problem,), ("registered",))

    async def _load(self) -> None:
        """Read the Secret; registrations made while the host was away go there instead."""
        backoff = Backoff(initial=0.5, maximum=15.0)
        while True:
            try:
                async with self._lock:
                    if self.unsaved:
                        await self._write_secret()
                        self.unsaved = False
                    else:
                        self.known = await self._read_secret()
                    self._loaded = True
            except StatusError as error:
                log.debug("registrations cannot be read from the host: %s", error.message)
                await backoff.wait()
                continue
            await self._save()
            self._changed.set()
            return

    async def _read_secret(self) -> dict[str, dict[str, Any]]:
        assert self._host is not None
        try:
            secret = await self._host.get(SECRETS, NAMESPACE, SECRET)
        except StatusError as error:
            if error.code == 404:
                return {}
            raise
        entries: dict[str, Any] = {}
        for name, value in (secret.get("data") or {}).items():
            try:
                entries[name] = msgspec.json.decode(base64.b64decode(value))
            except (msgspec.DecodeError, ValueError):
                entries[name] = None
        return readable(entries, f"Secret {NAMESPACE}/{SECRET}")

    async def _write_secret(self) -> None:
        assert self._host is not None
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        try:
            await self._host.create(NAMESPACES, None, namespace)
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
        data = {
            name: base64.b64encode(msgspec.json.encode(entry)).decode() for name, entry in self.known.items()
        }
        body = {
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": SECRET, "namespace": NAMESPACE}, "data": data,
        }  # fmt: skip
        await self._host.apply(SECRETS, NAMESPACE, SECRET, body, field_manager="reclock-discovery")

    async def put(self, name: str, kubeconfig: Mapping[str, Any], labels: Mapping[str, str]) -> None:
        """Add or replace; StatusError (503) where it could be kept nowhere."""
        async with self._lock:
            before = dict(self.known)
            self.known[name] = registration(kubeconfig, labels)
            await self._keep(before)

    async def remove(self, name: str) -> bool:
        """Remove; whether there was one."""
        async with self._lock:
            before = dict(self.known)
            if self.known.pop(name, None) is None:
                return False
            await self._keep(before)
            return True

    async def _keep(self, before: dict[str, dict[str, Any]]) -> None:
        """Make a change durable before it is answered and takes effect, else undo it."""
        reason = "there is no host and no stateFile to keep it in"
        written = False
        if self._host is not None:
            reason = "the host cannot be read yet, and there is no stateFile to keep it in"
            if self._loaded:
                try:
                    await self._write_secret()
                    written = True
                except StatusError as error:
                    reason = error.message
        unsaved, self.unsaved = self.unsaved, self._host is not None and not written
        if not await self._save() and not written:
            self.known, self.unsaved = before, unsaved
            raise unavailable(f"the registration cannot be kept: {reason}")
        self._changed.set()


def readable(entries: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Those that are registrations, as `put` makes them; somebody may have edited what they are kept in."""
    known: dict[str, dict[str, Any]] = {}
    for name, entry in entries.items():
        try:
            if not is_dns_label(name):
                raise ValueError("its name is no DNS label")
            kept = msgspec.convert(entry, Registration)
            if problem := bad_label(kept.labels):
                raise ValueError(problem)
            known[name] = registration(embedded(msgspec.json.encode(kept.kubeconfig)), kept.labels)
        except (KubeconfigError, msgspec.ValidationError, ValueError) as error:
            log.error("%s: %s holds no registration (%s); left out", where, name, error)
    return known
