"""What providers have in common that read clusters out of another cluster's objects."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.errors import StatusError, unavailable
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.kubeconfig import KubeconfigError
from services.common.tasks import Backoff
from services.discovery.names import Candidate, assign
from services.discovery.providers.base import Found, Problem, Publish, Reading, embedded, found, unread

FIRST = 5.0
"""Seconds after which it is said why the first complete reading has not come."""
LOOK = 1.0
"""Seconds between looks at whether the objects are still followed."""
GRACE = 3.0
"""Seconds that objects may be unfollowed before it is reported: a restart of the apiserver is no news."""
SETTLE = 0.05
"""Seconds over which changes are gathered: objects are often written several at a time."""

Key = tuple[str, str]


@dataclass(slots=True)
class Access:
    """What was last read from one object's kubeconfig."""

    uid: str = ""
    version: str = ""
    kubeconfig: Mapping[str, Any] | None = None
    """As last read well."""
    problem: str = ""
    """What is wrong with it now."""
    labels: Mapping[str, str] | None = None
    """What the provider knows about the cluster."""


def reread(before: Access | None, secret: Mapping[str, Any], key: str) -> Access:
    """Read a Secret's kubeconfig unless it is the version of before; what is bad leaves the last good one."""
    metadata = secret["metadata"]
    uid, version = str(metadata.get("uid", "")), str(metadata.get("resourceVersion", ""))
    if before is not None and (before.uid, before.version) == (uid, version):
        return before
    kept = before.kubeconfig if before is not None and before.uid == uid else None
    try:
        data = base64.b64decode(str((secret.get("data") or {})[key]), validate=True)
        return Access(uid, version, embedded(data))
    except (binascii.Error, ValueError) as error:
        reason = str(error) if isinstance(error, KubeconfigError) else "is no base64"
        return Access(uid, version, kept, f"{key} {reason}")


def has_key(secret: Mapping[str, Any], key: str) -> bool:
    """Whether a Secret has a key at all."""
    return key in (secret.get("data") or {})


class ObjectProvider:
    """Runs informers on a cluster and publishes what subclasses make of their objects."""

    where = "the cluster"
    """Source of problems that concern all of it."""
    reread = float("inf")
    """Seconds after which `read` is called though no object changed: for what does not come out of objects."""

    def __init__(
        self, ident: str, kubeconfig: str, host: KubeClient | None, holders: Callable[[], Mapping[str, str]]
    ) -> None:
        """`kubeconfig` is the path of that of the cluster to read from; "" takes the host."""
        self.id = ident
        self._kubeconfig = kubeconfig
        self._host = None if kubeconfig else host
        self._holders = holders
        self._event = asyncio.Event()
        self._informers: Sequence[Informer] = ()
        self._retry = False
        """Something could not be read: look again soon."""
        self._well = 0.0
        """Time of the loop's clock at which all objects were followed last."""

    # What subclasses say.

    async def watches(self, client: KubeClient) -> Sequence[Informer]:
        """Informers to run, with `self.changed` as handler; StatusError where it cannot be said now."""
        raise NotImplementedError

    async def read(self, client: KubeClient) -> Mapping[Candidate, Access]:
        """All clusters there are now, those with problems included."""
        raise NotImplementedError

    def unread(self) -> Sequence[tuple[str, str]]:
        """(beginning of sources, why) of what could not be read: clusters known from there stay."""
        return ()

    async def stop(self) -> None:
        """Called when `run` ends."""

    # The loop.

    def changed(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        """Handler of the informers."""
        self._event.set()

    def refused(self, source: str) -> None:
        """See base.Rereads. Where all is followed there is nothing newer to read."""
        if self.reread < float("inf"):
            self._event.set()

    async def run(self, publish: Publish) -> None:
        """Connect, then publish a reading whenever objects change."""
        client = self._host or await self._connect(publish)
        try:
            self._informers = await self._start(client, publish)
            async with asyncio.TaskGroup() as group:
                for informer in self._informers:
                    group.create_task(informer.run(), name=f"{self.id}/{informer.resource.key}")
                await self._synced(publish)
                await self._follow(client, publish)
        finally:
            await self.stop()
            if client is not self._host:
                await client.close()

    async def _connect(self, publish: Publish) -> KubeClient:
        """Make the client; its file may come later."""
        backoff = Backoff(initial=0.5, maximum=10.0)
        while True:
            try:
                return await KubeClient.connect(
                    Path(self._kubeconfig), name=self.id, user_agent="reclock-discovery"
                )
            except KubeconfigError as error:
                publish(unread(self._kubeconfig, str(error)))
            await backoff.wait()

    async def _start(self, client: KubeClient, publish: Publish) -> Sequence[Informer]:
        backoff = Backoff(initial=0.5, maximum=10.0)
        while True:
            try:
                return await self.watches(client)
            except StatusError as error:
                publish(unread(self.where, error.message))
            await backoff.wait()

    async def _synced(self, publish: Publish) -> None:
        """Wait for the first complete lists; say what keeps them from coming."""
        end = asyncio.get_running_loop().time() + FIRST
        for informer in self._informers:
            while not informer.synced.is_set():
                try:
                    async with asyncio.timeout(LOOK):
                        await informer.synced.wait()
                except TimeoutError:
                    if asyncio.get_running_loop().time() >= end:
                        publish(unread(self.where, informer.last_error or "its objects could not be listed yet"))

    async def _follow(self, client: KubeClient, publish: Publish) -> None:
        backoff = Backoff(initial=LOOK, maximum=30.0)
        self._well = asyncio.get_running_loop().time()
        while True:
            self._event.clear()
            self._retry = False
            said = self._trouble()
            publish(self._reading(await self.read(client), said))
            if not self._retry:
                backoff.reset()
            end = asyncio.get_running_loop().time() + (backoff.next_delay() if self._retry else self.reread)
            while not self._event.is_set() and self._trouble() == said:
                if asyncio.get_running_loop().time() >= end:
                    break
                try:
                    async with asyncio.timeout(LOOK):
                        await self._event.wait()
                except TimeoutError:
                    continue
            await asyncio.sleep(SETTLE)

    def _trouble(self) -> str:
        """Why objects are not followed for a while; clusters stay as they were seen last."""
        error = next((informer.last_error for informer in self._informers if informer.last_error), "")
        now = asyncio.get_running_loop().time()
        self._well = self._well if error else now
        return error if now - self._well >= GRACE else ""

    def _reading(self, known: Mapping[Candidate, Access], trouble: str) -> Reading:
        problems = [Problem(self.where, trouble)] if trouble else []
        unreadable: list[str] = []
        for source, why in self.unread():
            problems.append(Problem(source, why))
            unreadable.append(source)
        for candidate, access in known.items():
            if access.problem:
                problems.append(Problem(candidate.source, access.problem))
                unreadable.append(candidate.source)
        usable = [candidate for candidate, access in known.items() if access.kubeconfig is not None]
        names, notes = assign(usable, self._holders())
        problems.extend(Problem(candidate.source, message) for candidate, message in notes)
        clusters = tuple(_found(name, c.source, known[c], trouble) for name, c in names.items())
        return Reading(clusters, tuple(problems), tuple(unreadable))


def _found(name: str, source: str, access: Access, trouble: str) -> Found:
    assert access.kubeconfig is not None
    return found(name, access.kubeconfig, source, access.labels, problem=access.problem or trouble)


async def preferred_version(client: KubeClient, group: str, what: str) -> str:
    """Version of an API group that the cluster prefers; StatusError where there is none."""
    try:
        answer = (await client.request("GET", f"/apis/{group}")).json()
    except StatusError as error:
        if error.code == 404:
            raise StatusError(404, None, f"{what} is not installed there (no API group {group})") from None
        raise
    version = answer.get("preferredVersion") if isinstance(answer, dict) else None
    if not isinstance(version, dict) or not isinstance(version.get("version"), str):
        raise unavailable(f"/apis/{group}: the answer is no API group")
    return str(version["version"])
