"""A small HTTP server that plays an apiserver: lists and watches of pods, probes, tokens, TLS. For unit tests."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import ssl
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PODS = "/api/v1/pods"


def status(code: int, reason: str, message: str = "no") -> web.Response:
    """A metav1.Status."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": message}  # fmt: skip
    return web.json_response(body, status=code)


def pod(name: str, version: int, uid: str = "", **labels: str) -> dict[str, Any]:
    """A pod."""
    return {"metadata": {"name": name, "namespace": "default", "uid": uid or f"uid-{name}",
                         "resourceVersion": str(version), "labels": labels}}  # fmt: skip


class KubeFake:
    """Start with `async with`; `kubeconfig()` gives access. Attributes change its behaviour at any time."""

    def __init__(self, tls: ssl.SSLContext | None = None, ca: bytes = b"") -> None:
        self.uid = "11111111-aaaa"
        self.ready = True
        self.tokens: set[str] | None = None
        self.items: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.oldest = 0
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.garbage = False
        self.page = 0
        self.watches: set[asyncio.Event] = set()
        self._moved = asyncio.Event()
        self._tls, self._ca = tls, ca
        self.port = 0
        self.extra_routes: list[web.RouteDef] = []
        """Served too, from the next start on."""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> KubeFake:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the port of before if there is one."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes([
            web.get("/readyz", self._readyz), web.get("/version", self._version),
            web.get("/api/v1/namespaces/kube-system", self._system), web.get(PODS, self._pods),
            web.post("/api/v1/namespaces/default/pods", self._echo), *self.extra_routes,
        ])  # fmt: skip
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening; open watches break."""
        self.break_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def kubeconfig(self, name: str = "fake", **user: Any) -> dict[str, Any]:
        """A kubeconfig for it."""
        cluster: dict[str, Any] = {"server": self.url}
        if self._ca:
            cluster["certificate-authority-data"] = base64.b64encode(self._ca).decode()
        return kubeconfig(name, cluster, user)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        self.headers.append(dict(request.headers))
        if self.garbage:
            return web.Response(text="<html>please log in</html>", status=502)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            return status(401, "Unauthorized", "Unauthorized")
        return await handler(request)

    async def _readyz(self, request: web.Request) -> web.Response:
        if self.ready:
            return web.Response(text="ok")
        return web.Response(text="[+]ping ok\n[-]etcd failed: reason withheld\n", status=500)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"gitVersion": "v1.34.4"})

    async def _system(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": self.uid}})

    async def _echo(self, request: web.Request) -> web.Response:
        return web.json_response(await request.json(), status=201)

    def set(self, item: dict[str, Any]) -> None:
        """Create or change a pod, with an event."""
        name = item["metadata"]["name"]
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, "MODIFIED" if name in self.items else "ADDED", item))
        self.items[name] = item
        self._wake()

    def remove(self, name: str) -> None:
        """Delete a pod, with an event."""
        self.version += 1
        item = json.loads(json.dumps(self.items.pop(name)))
        item["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, "DELETED", item))
        self._wake()

    def send(self, kind: str, obj: dict[str, Any]) -> None:
        """Send an event as it is."""
        self.version += 1
        self.events.append((self.version, kind, obj))
        self._wake()

    def compact(self) -> None:
        """Forget all events: watches from before are answered with 410."""
        self.oldest = self.version
        self.events.clear()

    def break_watches(self) -> None:
        """End open watches in the middle."""
        for end in self.watches:
            end.set()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") == "true":
            return await self._watch(request)
        names = sorted(self.items)
        start = int(request.query.get("continue", 0))
        if start and self.oldest > self.page:
            return status(410, "Expired", "the continue token is too old")
        size = int(request.query.get("limit", 0)) and (self.page or len(names))
        chosen = names[start : start + size] if size else names
        metadata = {"resourceVersion": str(self.version)}
        if start + len(chosen) < len(names):
            metadata["continue"] = str(start + len(chosen))
        items = [self.items[name] for name in chosen]
        return web.json_response(
            {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        seen = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        if seen < self.oldest:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old", "metadata": {}}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        end = asyncio.Event()
        self.watches.add(end)
        try:
            while not end.is_set():
                moved = self._moved
                for version, kind, item in list(self.events):
                    if version > seen:
                        seen = version
                        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
                        # In two parts: a client must not take a chunk for a line.
                        await response.write(line[:20])
                        await response.write(line[20:])
                waits = [asyncio.ensure_future(moved.wait()), asyncio.ensure_future(end.wait())]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
            if request.transport is not None:
                request.transport.abort()
            return response
        finally:
            self.watches.discard(end)


def kubeconfig(name: str, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> dict[str, Any]:
    """A kubeconfig of one context."""
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }  # fmt: skip


def make_ca(name: str = "ca") -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key, _sign(name, key, name, key, ca=True)


def _sign(
    issuer: str, issuer_key: ec.EllipticCurvePrivateKey, subject: str, key: ec.EllipticCurvePrivateKey,
    ca: bool = False, hours: float = 24,
) -> x509.Certificate:  # fmt: skip
    import ipaddress

    moment = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - datetime.timedelta(hours=1))
        .not_valid_after(moment + datetime.timedelta(hours=hours))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def pem(thing: x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    """PEM of a certificate or key."""
    if isinstance(thing, x509.Certificate):
        return thing.public_bytes(serialization.Encoding.PEM)
    return thing.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def make_pair(ca_key: ec.EllipticCurvePrivateKey, ca: str, name: str, hours: float = 24) -> tuple[bytes, bytes]:
    """(certificate, key) signed by a CA, PEM; valid for some more hours (negative, down to -1: expired)."""
    key = ec.generate_private_key(ec.SECP256R1())
    return pem(_sign(ca, ca_key, name, key, hours=hours)), pem(key)


def server_tls(cert: bytes, key: bytes, folder: Path) -> ssl.SSLContext:
    """TLS context of a server."""
    (folder / "server.pem").write_bytes(cert + key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")
    return context


async def eventually(check: Any, limit: float = 40.0) -> None:
    """Wait until `check()` holds; the assertion at the end names it."""
    end = asyncio.get_running_loop().time() + limit
    while not check():
        assert asyncio.get_running_loop().time() < end, "did not come true in time"
        await asyncio.sleep(0.01)
