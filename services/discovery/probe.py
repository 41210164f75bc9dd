"""Probes: is the cluster there, is it ready, which one is it, how fast does it answer."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from services.common.errors import MemberUnreachable, StatusError
from services.common.kube.client import KubeClient
from services.common.kube.kubeconfig import KubeconfigError
from services.common.kube.resource import NAMESPACES
from services.common.tasks import Tasks
from services.discovery import metrics
from services.discovery.config import Probe
from services.discovery.record import Record

log = logging.getLogger(__name__)

SAMPLES = 5
TIMEOUTS = 2
"""Probes in a row that must time out before a cluster that answered counts as unreachable."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one probe found out; `reason` and `message` are of the condition that is not True, if any."""

    reachable: bool
    ready: bool
    reason: str
    message: str = ""
    version: str = ""
    uid: str = ""
    latency_us: int = 0


REASONS: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((KubeconfigError,), "CredentialsUnavailable"),
    ((aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError), "CertificateNotTrusted"),
    ((aiohttp.ClientSSLError, ssl.SSLError), "TLSFailed"),
    ((aiohttp.ClientConnectorDNSError,), "NameNotResolved"),
    ((asyncio.TimeoutError,), "Timeout"),
    ((aiohttp.ClientConnectorError,), "CannotConnect"),
)


def unreachable(error: StatusError) -> ProbeResult:
    """Name why a cluster did not answer."""
    cause = error.__cause__
    reason = next((name for kinds, name in REASONS if isinstance(cause, kinds)), "NoAnswer")
    return ProbeResult(False, False, reason, error.message)


async def probe(client: KubeClient, timeout: float) -> ProbeResult:
    """Ask for /readyz, /version and the uid of kube-system, side by side, within `timeout` seconds."""
    started = time.perf_counter()

    async def readyz() -> tuple[int, str, float]:
        answer = await client.request("GET", "/readyz", check=False, timeout=timeout)
        return answer.status, answer.body[:2000].decode("utf-8", "replace"), time.perf_counter() - started

    failed: StatusError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            ready = group.create_task(readyz())
            version = group.create_task(client.request("GET", "/version", check=False, timeout=timeout))
            system = group.create_task(
                client.request("GET", NAMESPACES.path(None, "kube-system"), check=False, timeout=timeout)
            )
    except* StatusError as errors:
        failed = _first(errors)
    if failed is not None:
        return unreachable(failed)
    status, text, latency = ready.result()
    found = version.result()
    git = ""
    if found.status == 200:
        try:
            git = str(found.json().get("gitVersion", ""))
        except (MemberUnreachable, AttributeError):
            return ProbeResult(False, False, "NotKubernetes", "its /version is no Kubernetes version")
    uid, problem, message = _uid(system.result().status, system.result().body, client.label)
    if not problem and status != 200 and status not in (401, 403):
        checks = [line for line in text.splitlines() if line.startswith("[-]")]
        problem, message = "NotReady", f"/readyz: HTTP {status}: {'; '.join(checks) or text[:200]}"
    return ProbeResult(
        True, not problem, problem or "ReadyzOk", message, git, uid, max(1, int(latency * 1_000_000))
    )


def _first(errors: BaseExceptionGroup[StatusError]) -> StatusError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _uid(status: int, body: bytes, label: str) -> tuple[str, str, str]:
    """Return (uid, reason, message) out of the answer for kube-system."""
    if status == 200:
        try:
            return str(msgspec.json.decode(body)["metadata"]["uid"]), "", ""
        except (msgspec.DecodeError, KeyError, TypeError):
            return "", "NotKubernetes", "its namespace kube-system is no Kubernetes object"
    error = StatusError.from_response(status, body, what=label)
    if status == 401:
        return "", "Unauthorized", "it refuses the credentials (401): renew them in the kubeconfig"
    if status == 403:
        return "", "Forbidden", "allow its user to get namespaces: kube-system tells which cluster it is"
    return "", "NoKubeSystem", f"namespace kube-system: {error.message}"


class Prober:
    """A keeper that probes every engaged cluster in a task of its own; one that hangs delays nobody."""

    def __init__(self, settings: Probe, report: Callable[[str, ProbeResult], None]) -> None:
        self._settings = settings
        self._report = report
        self._limit = asyncio.Semaphore(settings.concurrency)
        self._tasks = Tasks("probes")
        self._running: dict[str, asyncio.Task[None]] = {}

    def engaged(self, record: Record) -> None:
        """Start probing, or start anew with changed access."""
        self.disengaged(record)
        assert record.found is not None
        self._running[record.name] = self._tasks.spawn(
            self._run(record.name, record.found.kubeconfig), record.name
        )

    def changed(self, record: Record) -> None:
        """Nothing to do."""

    def disengaged(self, record: Record) -> None:
        """Stop probing."""
        task = self._running.pop(record.name, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop all probes."""
        await self._tasks.close()

    async def _run(self, name: str, kubeconfig: object) -> None:
        client = await KubeClient.connect(kubeconfig, name=name, user_agent="reclock-discovery")  # type: ignore[arg-type]
        samples: deque[int] = deque(maxlen=SAMPLES)
        timeouts = 0
        answered = False
        try:
            while True:
                result = await self._once(client)
                timeouts = timeouts + 1 if result.reason == "Timeout" and not result.reachable else 0
                if result.reachable:
                    answered = True
                    samples.append(result.latency_us)
                    result = with_latency(result, int(statistics.median(samples)))
                # A busy machine makes one probe late; that is no loss of a cluster.
                if not (answered and 0 < timeouts < TIMEOUTS):
                    answered = result.reachable
                    self._report(name, result)
                await asyncio.sleep(self._settings.interval * random.uniform(0.9, 1.1))
        finally:
            await asyncio.shield(client.close())

    async def _once(self, client: KubeClient) -> ProbeResult:
        async with self._limit:
            started = time.perf_counter()
            result = await probe(client, self._settings.timeout)
            metrics.PROBES.labels("reached" if result.reachable else "failed").observe(
                time.perf_counter() - started
            )
            return result


def with_latency(result: ProbeResult, latency_us: int) -> ProbeResult:
    """A copy with the median of the last probes."""
    return ProbeResult(
        result.reachable, result.ready, result.reason, result.message, result.version, result.uid, latency_us
    )
