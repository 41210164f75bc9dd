"""Provider `kcp` on real API servers: one server in front of three, a path for each, as kcp serves its workspaces."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from yarl import URL

from deploy.local.fleet import Fleet
from services.common.errors import StatusError
from services.common.fleet import FleetWatcher
from services.common.kube.informer import Informer
from services.common.kube.resource import NODES
from services.discovery.config import DiscoveryConfig
from services.discovery.service import DiscoveryService
from tests.kube.conftest import Kubectl
from tests.kube.front_rig import serving_files
from tests.kube.test_discovery import CONFIG_MAPS, eventually
from tests.unit.kcp_objects import crd, workspace

TOKEN = "of-kcp"
CRDS = ("workspaces.tenancy.kcp.io", "logicalclusters.core.kcp.io")
HOP = {"host", "connection", "transfer-encoding", "content-length", "authorization", "keep-alive"}


class Shards:
    """A reverse proxy: `/clusters/<path>/…` is a whole API server; it takes one token, and has its own access to them."""

    def __init__(self, servers: dict[str, Path]) -> None:
        self._servers = {path: yaml.safe_load(file.read_text()) for path, file in servers.items()}
        self.seen: list[str] = []
        self.foreign = 0
        """Requests to no workspace, or without our token."""
        self.url = ""

    async def start(self, folder: Path) -> dict[str, Any]:
        """Listen; returns the kubeconfig of the root, as kcp writes it."""
        self._session = aiohttp.ClientSession(auto_decompress=False)
        self._contexts = {path: _context(config) for path, config in self._servers.items()}
        tls, authority = serving_files(folder)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.cert, tls.key)
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{rest:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context).start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}"
        cluster = {"server": f"{self.url}/clusters/root", "certificate-authority-data": authority.pair.cert_base64()}
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "root", "clusters": [{"name": "root", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "root", "context": {"cluster": "root", "user": "admin"}}],
        }  # fmt: skip

    async def stop(self) -> None:
        """Break everything."""
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        _, clusters, path, rest = [*request.raw_path.split("/", 3), "", "", ""][:4]
        if clusters != "clusters" or path not in self._servers or request.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.foreign += 1
            return web.json_response({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden"}, status=403)
        self.seen.append(path)
        server = self._servers[path]["clusters"][0]["cluster"]["server"]
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        async with self._session.request(
            request.method, URL(f"{server}/{rest}", encoded=True), headers=headers,
            data=await request.read() or None, ssl=self._contexts[path], allow_redirects=False,
        ) as answer:  # fmt: skip
            out = web.StreamResponse(status=answer.status)
            out.headers.extend({name: value for name, value in answer.headers.items() if name.lower() not in HOP})
            await out.prepare(request)
            async for chunk in answer.content.iter_any():
                await out.write(chunk)
            await out.write_eof()
            return out


def _context(config: dict[str, Any]) -> ssl.SSLContext:
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return context


@pytest_asyncio.fixture(loop_scope="session")
async def kcp(
    clusters: Fleet, kubectl: Callable[[Path], Kubectl], tmp_path: Path
) -> AsyncIterator[tuple[Shards, FleetWatcher]]:
    """The host is the workspace `root`, its children `one` and `two` are east and west; discovery runs on them."""
    places = {"root": clusters.host, "root:one": clusters.members["east"], "root:two": clusters.members["west"]}
    shards = Shards({path: plane.kubeconfig for path, plane in places.items()})
    file = tmp_path / "kcp.kubeconfig"
    file.write_text(json.dumps(await shards.start(tmp_path / "pki")))
    for plane in places.values():
        call = kubectl(plane.kubeconfig)
        for definition in (crd("tenancy.kcp.io", "workspaces", "Workspace"), crd("core.kcp.io", "logicalclusters", "LogicalCluster")):
            await call("apply", "-f", "-", stdin=json.dumps(definition))
        await call("wait", "--for=condition=Established", *(f"crd/{name}" for name in CRDS))
        own = {"apiVersion": "core.kcp.io/v1alpha1", "kind": "LogicalCluster", "metadata": {"name": "cluster"}}
        await call("create", "-f", "-", stdin=json.dumps(own))
    service = DiscoveryService(DiscoveryConfig(
        grpc_address="127.0.0.1:0", http_address="", providers=[{"type": "kcp", "kubeconfig": str(file)}]
    ))  # fmt: skip
    service.config.probe.interval = 0.3
    running = asyncio.create_task(service.run())
    await eventually(lambda: service._ready)
    watcher = FleetWatcher(service.grpc.bound)
    watching = asyncio.create_task(watcher.run())
    await eventually(watcher.synced.is_set)
    yield shards, watcher
    watching.cancel()
    await asyncio.wait({watching})
    service.request_stop()
    assert await running == 0
    for plane in places.values():
        await kubectl(plane.kubeconfig)("delete", "crd", *CRDS)
    await shards.stop()


async def test_workspaces_on_real_api_servers(
    kcp: tuple[Shards, FleetWatcher], clusters: Fleet, kubectl: Callable[[Path], Kubectl], tmp_path: Path
) -> None:
    shards, fleet = kcp
    root = kubectl(clusters.host.kubeconfig)
    assert not fleet.members
    for name, phase in (("one", "Ready"), ("two", "Initializing")):
        await root("create", "-f", "-", stdin=json.dumps(workspace(name, phase)))
    await eventually(lambda: {m.name for m in fleet.members.values() if m.ready} == {"root-one"})
    await root("patch", "workspace", "two", "--type=merge", "-p", '{"status":{"phase":"Ready"}}')
    await eventually(lambda: {m.name for m in fleet.members.values() if m.ready} == {"root-one", "root-two"})

    for name, place in (("root-one", "east"), ("root-two", "west")):
        member, direct = fleet.members[name], kubectl(clusters.members[place].kubeconfig)
        assert member.uid == (await direct.json("get", "logicalcluster", "cluster"))["metadata"]["uid"]
        assert member.kube_version.startswith("v1.")
        nodes = (await member.client.list(NODES))["items"]
        assert {node["metadata"]["name"].partition("-")[0] for node in nodes} == {place}
        seen: list[str] = []
        informer = Informer(
            member.client, CONFIG_MAPS, namespace="default",
            handler=lambda kind, obj, old, seen=seen: seen.append(f"{kind} {obj['metadata']['name']}"),
        )  # fmt: skip
        following = asyncio.create_task(informer.run())
        await eventually(informer.synced.is_set)
        for other in ("east", "west"):
            await kubectl(clusters.members[other].kubeconfig)("create", "configmap", f"{name}-by-{other}")
        await eventually(lambda seen=seen, line=f"ADDED {name}-by-{place}": line in seen)
        await member.client.create(CONFIG_MAPS, "default", {"metadata": {"name": f"{name}-mine"}})
        await eventually(lambda seen=seen, line=f"ADDED {name}-mine": line in seen)
        assert "-mine" in await direct("get", "configmap", f"{name}-mine", "-o", "name")
        await member.client.delete(CONFIG_MAPS, "default", f"{name}-mine")
        await eventually(lambda seen=seen, line=f"DELETED {name}-mine": line in seen)
        assert len([line for line in seen if f"{name}-by-" in line]) == 1, "another workspace's are not shown"
        with pytest.raises(StatusError) as caught:
            await member.client.request("GET", "/../root:two/api/v1/nodes")
        assert caught.value.code in (400, 403, 404)
        following.cancel()
        await asyncio.wait({following})
        for other in ("east", "west"):
            await kubectl(clusters.members[other].kubeconfig)("delete", "configmap", f"{name}-by-{other}")

    # A workspace that goes is a cluster that left; made anew it is another one, and taken at once.
    gone = fleet.members["root-one"].uid
    await root("delete", "workspace", "one")
    await eventually(lambda: {*fleet.members} == {"root-two"})
    east = kubectl(clusters.members["east"].kubeconfig)
    await east("delete", "logicalcluster", "cluster")
    await east("create", "-f", "-", stdin='{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster"}}')
    await root("create", "-f", "-", stdin=json.dumps(workspace("one")))
    await eventually(lambda: "root-one" in fleet.members and fleet.members["root-one"].ready)
    assert fleet.members["root-one"].uid not in ("", gone)
    assert set(shards.seen) == {"root", "root:one", "root:two"}
    assert shards.foreign == 0, "our credentials went to the workspaces only"
