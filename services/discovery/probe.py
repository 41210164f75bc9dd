"""Probes: is the cluster there, is it ready, which one is it, how fast does it answer."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import ssl
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import aiohttp
import msgspec

from services.common.errors import MemberUnreachable, StatusError, cut
from services.common.kube.client import KubeClient, Response
from services.common.kube.kubeconfig import KubeconfigError
from services.common.tasks import Tasks
from services.discovery import metrics
from services.discovery.config import Probe
from services.discovery.record import Record

log = logging.getLogger(__name__)

SAMPLES = 5
VERSION_EVERY = 12
"""Every so many probes, and after a loss, the version is asked for again."""
SPREAD = 0.01
"""Seconds per cluster over which first probes are spread: many clusters that come at once are handed out before."""
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
    """Of the last few probes, the median."""
    sample_us: int = 0
    """Of this one."""


REASONS: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((KubeconfigError,), "CredentialsUnavailable"),
    ((aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError), "CertificateNotTrusted"),
    ((aiohttp.ClientSSLError, ssl.SSLError), "TLSFailed"),
    ((aiohttp.ClientConnectorDNSError,), "NameNotResolved"),
    ((asyncio.TimeoutError,), "Timeout"),
    ((aiohttp.ClientConnectorError,), "CannotConnect"),
)

CUT_OFF = frozenset({"NoAnswer", "TLSFailed"})
"""How a server may end a connection whose client certificate it does not take."""


def unreachable(error: StatusError) -> ProbeResult:
    """Name why a cluster did not answer."""
    cause = error.__cause__
    reason = next((name for kinds, name in REASONS if isinstance(cause, kinds)), "NoAnswer")
    return ProbeResult(False, False, reason, error.message)


async def probe(client: KubeClient, timeout: float, version: str = "") -> ProbeResult:
    """Ask for /readyz, the uid of kube-system (of the namespace that is the cluster, of kcp's logical cluster) and (where `version` is not known) /version, in `timeout` seconds.

    One after the other: side by side each would open a connection of its own.
    """
    end = time.perf_counter() + timeout

    async def ask(path: str) -> Response:
        return await client.request("GET", path, check=False, timeout=max(end - time.perf_counter(), 0.01))

    try:
        started = time.perf_counter()
        ready = await ask("/readyz")
        latency = time.perf_counter() - started
        system = await ask(client.shape.identity_path)
        git = version or _version(await ask("/version"))
        uid, problem, message = _uid(system, client)
    except StatusError as error:
        found = unreachable(error)
        ended = _ended(client)
        return replace(found, reason="CertificateExpired", message=ended) if ended and found.reason in CUT_OFF else found
    if not problem and ready.status != 200 and ready.status not in (401, 403):
        # Only lines of failing checks are passed on: any other body may be a proxy's page.
        checks = [cut(line, 200) for line in ready.body.decode("utf-8", "replace").splitlines() if line[:3] == "[-]"]
        problem, message = "NotReady", f"/readyz: HTTP {ready.status} {'; '.join(checks)}".rstrip()
    return ProbeResult(
        True, not problem, problem or "ReadyzOk", message, git, uid, taken := max(1, int(latency * 1_000_000)), taken
    )


def _version(answer: Response) -> str:
    if answer.status != 200:
        return ""
    found = answer.json()
    return str(found.get("gitVersion", "")) if isinstance(found, dict) else ""


def _ended(client: KubeClient) -> str:
    """What to do about a client certificate that has ended; "" where that is not so."""
    end = client.certificate_end
    if end is None or end > datetime.now(UTC):
        return ""
    return f"our client certificate for it expired at {end:%FT%TZ}: renew it in the kubeconfig"


def _uid(answer: Response, client: KubeClient) -> tuple[str, str, str]:
    """Return (uid, reason, message) out of the answer for kube-system; MemberUnreachable for a proxy's page."""
    if answer.status == 200:
        try:
            return str(msgspec.json.decode(answer.body)["metadata"]["uid"]), "", ""
        except (msgspec.DecodeError, KeyError, TypeError):
            raise MemberUnreachable(f"{client.label}: what answers there is no Kubernetes apiserver") from None
    error = StatusError.from_response(answer.status, answer.body, what=client.label)
    if isinstance(error, MemberUnreachable):
        raise error
    if answer.status == 401:
        ended = _ended(client)
        text = "it refuses the credentials (401): renew them in the kubeconfig"
        return "", "CertificateExpired" if ended else "Unauthorized", ended or text
    path = client.shape.identity_path
    if answer.status == 403:
        return "", "Forbidden", f"allow its user to get {path}: that tells which cluster it is"
    return "", "NoKubeSystem" if path.endswith("/kube-system") else "NoIdentity", f"{path}: {error.message}"


class Prober:
    """A keeper that probes every engaged cluster in a task of its own; one that hangs delays nobody."""

    def __init__(
        self, settings: Probe, report: Callable[[str, ProbeResult], None],
        identified: Callable[[str, str, ProbeResult], None] = lambda name, digest, result: None,
    ) -> None:  # fmt: skip
        """`report(name, result)` is told of clusters, `identified(name, digest, result)` of access that waits."""
        self._settings = settings
        self._report, self._identified = report, identified
        self._limit = asyncio.Semaphore(settings.concurrency)
        self._tasks = Tasks("probes")
        self._running: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def engaged(self, record: Record) -> None:
        """Start probing, or start anew with changed access."""
        self._stop(self._running, record.name)
        assert record.found is not None
        self._running[record.name] = self._tasks.spawn(
            self._run(record.name, record.found.kubeconfig, functools.partial(self._report, record.name)), record.name
        )

    def waits(self, record: Record) -> None:
        """Probe the access that waits under its name, unless it is the same as that in force."""
        self._stop(self._waiting, record.name)
        waiting = record.waiting.found if record.waiting is not None else None
        if waiting is None or (record.found is not None and record.found.digest == waiting.digest):
            return
        report = functools.partial(self._identified, record.name, waiting.digest)
        self._waiting[record.name] = self._tasks.spawn(
            self._run(record.name, waiting.kubeconfig, report), f"{record.name} waiting"
        )

    def changed(self, record: Record) -> None:
        """Nothing to do."""

    def disengaged(self, record: Record) -> None:
        """Stop probing."""
        self._stop(self._running, record.name)
        self._stop(self._waiting, record.name)

    @staticmethod
    def _stop(tasks: dict[str, asyncio.Task[None]], name: str) -> None:
        task = tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop all probes."""
        await self._tasks.close()

    async def _run(self, name: str, kubeconfig: object, report: Callable[[ProbeResult], None]) -> None:
        spread = min(len(self._running) * SPREAD, 2 * self._settings.interval)
        await asyncio.sleep(random.uniform(0, spread))
        client = await KubeClient.connect(kubeconfig, name=name, user_agent="reclock-discovery")  # type: ignore[arg-type]
        samples: deque[int] = deque(maxlen=SAMPLES)
        timeouts = 0
        answered = False
        version, asked = "", 0
        try:
            while True:
                asked = (asked + 1) % VERSION_EVERY
                result = await self._once(client, version if asked else "")
                version = result.version
                timeouts = timeouts + 1 if result.reason == "Timeout" and not result.reachable else 0
                if result.reachable:
                    answered = True
                    samples.append(result.latency_us)
                    result = replace(result, latency_us=int(statistics.median(samples)))
                # A busy machine makes one probe late; that is no loss of a cluster.
                if not (answered and 0 < timeouts < TIMEOUTS):
                    answered = result.reachable
                    report(result)
                await asyncio.sleep(self._settings.interval * random.uniform(0.9, 1.1))
        finally:
            await asyncio.shield(client.close())

    async def _once(self, client: KubeClient, version: str) -> ProbeResult:
        async with self._limit:
            started = time.perf_counter()
            result = await probe(client, self._settings.timeout, version)
            metrics.PROBES.labels("reached" if result.reachable else "failed").observe(
                time.perf_counter() - started
            )
            return result
