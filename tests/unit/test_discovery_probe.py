"""Probes: what they say of good, unready, refusing, foreign and absent clusters."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

from kube_fake import KubeFake, eventually, make_ca, make_pair, pem, server_tls

from services.common.kube.client import KubeClient
from services.discovery.config import Probe
from services.discovery.hub import Hub
from services.discovery.probe import Prober, ProbeResult, probe
from services.discovery.providers.base import Reading, found
from services.discovery.record import REACHABLE, READY
from services.discovery.registry import Registry


async def once(kube: KubeFake, **user: str) -> ProbeResult:
    client = await KubeClient.connect(kube.kubeconfig(**user), name="east")
    try:
        return await probe(client, 3)
    finally:
        await client.close()


async def test_a_good_cluster() -> None:
    async with KubeFake() as kube:
        result = await once(kube)
        assert (result.reachable, result.ready, result.uid) == (True, True, kube.uid)
        assert result.version == "v1.34.4"
        assert result.latency_us > 0


async def test_an_unready_cluster_says_what_fails() -> None:
    async with KubeFake() as kube:
        kube.ready = False
        result = await once(kube)
        assert (result.reachable, result.ready, result.reason) == (True, False, "NotReady")
        assert result.message == "/readyz: HTTP 500 [-]etcd failed: reason withheld"


async def test_refused_credentials_are_no_loss() -> None:
    async with KubeFake() as kube:
        kube.tokens = {"right"}
        result = await once(kube, token="wrong")
        assert (result.reachable, result.ready, result.reason) == (True, False, "Unauthorized")


async def test_a_proxys_page_is_no_cluster_and_is_not_shown() -> None:
    async with KubeFake() as kube:
        kube.garbage = True
        result = await once(kube)
        assert not result.reachable
        assert "log in" not in result.message


async def test_absent_and_silent_clusters() -> None:
    async with KubeFake() as kube:
        pass
    assert (await once(kube)).reason == "CannotConnect"

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    kube.port = server.sockets[0].getsockname()[1]
    client = await KubeClient.connect(kube.kubeconfig(), name="east")
    assert (await probe(client, 0.2)).reason == "Timeout"
    await client.close()
    server.close()


async def test_the_prober_follows_a_cluster_through_loss_and_return_as_another() -> None:
    async with KubeFake() as kube:
        registry = Registry(Hub(), ["files"])
        prober = Prober(Probe(interval=0.1, timeout=1), registry.probed)
        registry.add_keeper(prober)
        registry.reading("files", Reading((found("east", kube.kubeconfig(), "x"),)))
        east = registry.records["east"]
        await eventually(lambda: east.is_true(READY))
        await kube.stop()
        await eventually(lambda: east.conditions[REACHABLE].status == "False")
        kube.uid = "another"
        await kube.start()
        await eventually(lambda: east.is_true(READY))
        assert east.uid == "another"
        registry.reading("files", Reading(()))
        count = len(kube.requests)
        await asyncio.sleep(0.3)
        assert len(kube.requests) == count
        await prober.close()


async def test_expired_certificates_are_named(tmp_path: Path) -> None:
    ca_key, ca = make_ca()
    old = server_tls(*make_pair(ca_key, "ca", "server", hours=-0.5), tmp_path)
    async with KubeFake(old, pem(ca)) as kube:
        found = await once(kube)
        assert (found.reachable, found.reason) == (False, "CertificateNotTrusted")
        assert "expired" in found.message
    strict = server_tls(*make_pair(ca_key, "ca", "server"), tmp_path)
    strict.load_verify_locations(cadata=pem(ca).decode())
    strict.verify_mode = ssl.CERT_REQUIRED
    cert, key = make_pair(ca_key, "ca", "client", hours=-0.5)
    data = {"client-certificate-data": cert, "client-key-data": key}
    user = {name: base64.b64encode(value).decode() for name, value in data.items()}
    async with KubeFake(strict, pem(ca)) as kube:
        found = await once(kube, **user)
        assert (found.reachable, found.reason) == (False, "CertificateExpired")
        assert "our client certificate for it expired at 20" in found.message
    # As kube-apiserver does: it ends no connection for that, it says 401.
    lenient = server_tls(*make_pair(ca_key, "ca", "server"), tmp_path)
    async with KubeFake(lenient, pem(ca)) as kube:
        kube.tokens = {"other"}
        found = await once(kube, **user)
        assert (found.reachable, found.ready, found.reason) == (True, False, "CertificateExpired")
