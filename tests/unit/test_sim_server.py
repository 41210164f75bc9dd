"""Simulated clusters on HTTP: by the services' own client, with users, streams, faults."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from deploy.local.sim import Rule, World
from deploy.local.sim.access import Credentials
from deploy.local.sim.core import User
from deploy.local.sim.server import Server
from services.common.errors import MemberUnreachable, StatusError
from services.common.kube.client import KubeClient
from services.common.kube.resource import NODES, PODS, Resource
from tests.unit.test_protobuf_bodies import body, field

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
PROTOBUF = "application/vnd.kubernetes.protobuf"


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return Credentials(tmp_path_factory.mktemp("pki"))


@pytest_asyncio.fixture
async def server(credentials: Credentials, tmp_path: Path) -> AsyncIterator[Server]:
    world = World(5, time.time)
    world.add("east", nodes=1, authority=credentials.authority_pem)
    async with Server(world, tls=credentials.tls(), home=tmp_path / "rootfs").serving() as started:
        yield started


async def client(server: Server, credentials: Credentials, user: str = "admin", *groups: str) -> KubeClient:
    access = credentials.access("east", server.url_of("east"), user, groups or ("system:masters",))
    return await KubeClient.connect(yaml.safe_dump(access.document()).encode(), name="east")


def config(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}}


async def running_pod(kube: KubeClient, name: str) -> None:
    spec = {"containers": [{"name": "main", "image": "nginx:1"}]}
    await kube.create(
        PODS, "default", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    )
    async with asyncio.timeout(20):
        while (await kube.get(PODS, "default", name))["status"]["phase"] != "Running":  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_members_url_has_a_path_and_its_users_come_by_certificate(
    server: Server, credentials: Credentials
) -> None:
    admin = await client(server, credentials)
    nobody = await client(server, credentials, "nobody", "some-group")
    try:
        assert [node["metadata"]["name"] for node in (await admin.list(NODES))["items"]] == ["east-n0"]
        with pytest.raises(StatusError) as refused:
            await nobody.list(NODES)
        assert refused.value.code == 403
        assert 'User "nobody" cannot list resource "nodes"' in refused.value.message
        headers = {"Impersonate-User": "jane", "Impersonate-Group": "system:authenticated"}
        answer = await admin.request("GET", NODES.path(), headers=headers, check=False)
        assert answer.status == 403 and 'User \\"jane\\" cannot list' in answer.body.decode()
    finally:
        await admin.close()
        await nobody.close()
    tls = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(connector=tls) as session:
        url = server.url_of("east")
        server.world.clusters["east"].core.tokens["secret"] = User("robot", ("system:masters",))
        for path, token, status in (
            ("/readyz", "", 200), ("/api/v1/nodes", "", 401), ("/api/v1/nodes", "secret", 200), ("/api", "wrong", 401),
        ):  # fmt: skip
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.get(url + path, headers=headers) as response:
                assert response.status == status, (path, token)


async def test_protobuf_bodies_are_understood_and_answered_in_json(
    server: Server, credentials: Credentials
) -> None:
    meta = field(1, field(1, "from-protobuf")) + field(2, field(1, "k") + field(2, "v"))
    kube = await client(server, credentials)
    try:
        answer = await kube.request(
            "POST", CONFIG_MAPS.path("default"), body=body("v1", "ConfigMap", meta),
            headers={"Content-Type": PROTOBUF, "Accept": f"{PROTOBUF}, application/json"},
        )  # fmt: skip
        assert answer.json()["data"] == {"k": "v"} and answer.headers["Content-Type"] == "application/json"
    finally:
        await kube.close()


async def test_logs_and_exec(server: Server, credentials: Credentials) -> None:
    kube = await client(server, credentials)
    try:
        await running_pod(kube, "p")
        said = (await kube.request("GET", PODS.path("default", "p", "log"))).body.decode()
        assert said.startswith("container started on cluster east\n")
        access = credentials.access("east", server.url_of("east"), "admin")
        from deploy.local.probes import tls_context

        context = tls_context(access.authority, access.identity)
        command = "command=sh&command=-c&command=cat;echo+err+>%262;exit+3&stdin=1&stdout=1&stderr=1"
        url = f"{server.url_of('east')}/api/v1/namespaces/default/pods/p/exec?{command}"
        found: dict[int, bytes] = {}
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, protocols=("v5.channel.k8s.io",), ssl=context) as socket,
        ):
            await socket.send_bytes(b"\x00hello")
            await socket.send_bytes(b"\xff\x00")
            async for message in socket:
                found[message.data[0]] = found.get(message.data[0], b"") + message.data[1:]
        assert found[1] == b"hello" and found[2] == b"err\n"
        status = json.loads(found[3])
        assert status["reason"] == "NonZeroExitCode" and status["details"]["causes"][0]["message"] == "3"
        answer = await kube.request(
            "POST", PODS.path("default", "p", "exec"), query={"command": "ls"}, check=False
        )
        assert answer.status == 400 and "not SPDY" in answer.json()["message"]
    finally:
        await kube.close()


async def test_connections_fail_as_the_rules_say(server: Server, credentials: Credentials) -> None:
    kube = await client(server, credentials)
    east = server.world.clusters["east"]
    try:
        for rule in (
            Rule("refuse"),
            Rule("garbage", garbage="half"),
            Rule("hang"),
            Rule("garbage", garbage="endless"),
        ):
            east.faults.add(rule)
            with pytest.raises(MemberUnreachable):
                await kube.request("GET", NODES.path(), timeout=1)
            east.faults.lift(rule)
        html = east.faults.add(Rule("garbage", garbage="html"))
        answer = await kube.request("GET", NODES.path())
        assert answer.body.startswith(b"<html>")
        east.faults.lift(html)
        east.faults.add(Rule("garbage", garbage="version", count=1))
        assert (await kube.list(NODES))["metadata"]["resourceVersion"].startswith("x")
        east.faults.add(Rule("error", status=429, count=1))
        with pytest.raises(StatusError) as refused:
            await kube.list(NODES)
        assert refused.value.code == 429
        assert (await kube.list(NODES))["items"]
    finally:
        await kube.close()


async def test_watches_stream_and_break(server: Server, credentials: Credentials) -> None:
    kube = await client(server, credentials)
    east = server.world.clusters["east"]
    try:
        query = {"watch": "1", "resourceVersion": str(east.revision)}
        async with kube.stream("GET", CONFIG_MAPS.path("default"), query=query) as response:
            await kube.create(CONFIG_MAPS, "default", config("a"))
            event = json.loads(await response.content.readline())
            assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
            east.bookmark()  # not asked for
            east.drop_watches()
            with pytest.raises((aiohttp.ClientError, MemberUnreachable)):
                await response.content.readline()
        async with kube.stream("GET", CONFIG_MAPS.path(), query={**query, "timeoutSeconds": "1"}) as response:
            lines = [line async for line in response.content]
        assert len(lines) == 1
    finally:
        await kube.close()


async def test_the_admin_endpoint_does_what_python_does(server: Server, credentials: Credentials) -> None:
    from deploy.local.probes import http, tls_context

    access = credentials.access("east", server.url_of("east"), "admin")
    context = tls_context(access.authority, access.identity)
    east = server.world.clusters["east"]

    async def tell(
        action: str, given: dict[str, Any] | None = None, cluster: str = "east"
    ) -> tuple[int, Any]:
        status, answer = await http(
            "POST", f"{server.url}/sim/{cluster}/{action}", tls=context, body=json.dumps(given or {}).encode()
        )
        return status, json.loads(answer)

    uid = east.uid
    assert (await tell("backup"))[1]["revision"] == east.revision
    east.create(config("a"))
    await tell("restore")
    assert "default/a" not in east.states("configmaps") and east.uid == uid
    status, answer = await tell("reincarnate")
    assert status == 200 and answer["uid"] != uid
    assert await tell("fault", {"kind": "odd"}) == (
        400,
        {"error": "kind 'odd': allowed are delay, refuse, error, hang, garbage"},
    )
    assert (await tell("fly"))[0] == 404
    assert (await tell("add", {"nodes": 1}, "north"))[0] == 200 and "north" in server.world.clusters
    assert (await tell("add", {}, "north"))[0] == 409
    assert (await tell("remove", {}, "north"))[0] == 200
