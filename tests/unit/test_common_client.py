"""The Kubernetes client against a server of our own: errors, renewal of credentials, streams, tunnels, TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import uvloop
from aiohttp import web
from kube_fake import KubeFake, eventually, kubeconfig, make_ca, make_pair, pem, server_tls, status

from services.aggregator.front.errors import from_exception
from services.aggregator.front.errors import response as error_response
from services.common.errors import MemberUnreachable, StatusError
from services.common.kube.client import KubeClient, encode_query
from services.common.kube.kubeconfig import KubeconfigError
from services.common.kube.resource import PODS, Resource


def test_paths() -> None:
    deployments = Resource("apps", "v1", "deployments")
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("a", "b", "log") == "/api/v1/namespaces/a/pods/b/log"
    assert deployments.path("a") == "/apis/apps/v1/namespaces/a/deployments"
    assert deployments.key == "deployments.apps"
    roles = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
    assert roles.path("ignored", "system:node/x") == (
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node%2Fx"
    )  # fmt: skip


def test_queries() -> None:
    assert encode_query({"a": None, "b": True, "c": "x,y=z", "d": ["1", "2"]}) == "b=true&c=x%2Cy%3Dz&d=1&d=2"
    assert encode_query("as=it%20is") == "as=it%20is"
    assert encode_query(None) == ""


async def test_errors_of_the_server_and_of_the_way_to_it() -> None:
    async with KubeFake() as kube:
        client = await KubeClient.connect(kube.kubeconfig(), name="east")
        with pytest.raises(StatusError) as missing:
            await client.get(PODS, "default", "web")
        assert missing.value.code == 404
        kube.garbage = True
        with pytest.raises(MemberUnreachable) as garbage:
            await client.list(PODS)
        assert "log in" not in garbage.value.message
        await kube.stop()
        with pytest.raises(MemberUnreachable, match=r"cluster east: GET /api/v1/pods: cannot connect: Connection refused$"):
            await client.list(PODS)
        await client.close()
        with pytest.raises(MemberUnreachable, match="closed"):
            await client.list(PODS)


@pytest.mark.parametrize(("method", "sent"), [("DELETE", 1), ("PUT", 1), ("POST", 1), ("GET", 2)])
async def test_a_write_that_may_be_done_is_not_sent_again(method: str, sent: int) -> None:
    """The server does it and closes the kept connection: a second DELETE would be answered 404, a second PUT 409."""
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /version") or len(seen) == 1:
            seen.append(head.decode().split()[0])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        seen.append(head.decode().split()[0])
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = await KubeClient.connect(kubeconfig("fake", {"server": url}, {}), name="east")
        await client.request("GET", "/version")
        seen.clear()
        if sent == 1:
            with pytest.raises(MemberUnreachable, match="the connection broke") as broken:
                await client.request(method, "/api/v1/namespaces/a/pods/b", timeout=5)
            assert not broken.value.unsent
        else:
            await client.request(method, "/api/v1/namespaces/a/pods/b", timeout=5)
        assert seen == [method] * sent
        await client.close()


async def test_a_clusters_401_is_not_the_clients() -> None:
    """Whoever asked us would take it for their own, and log in anew."""
    async with KubeFake() as kube:
        kube.tokens = {"another"}
        client = await KubeClient.connect(kube.kubeconfig(token="revoked"), name="east")
        with pytest.raises(StatusError) as refused:
            await client.get(PODS, "default", "web")
        assert refused.value.code == 401, "to us it is one"
        told = from_exception(refused.value, "GET /")
        assert (told.code, told.message) == (503, "cluster east refuses the credentials that Reclock has for it")
        assert not error_response(told).headers["Retry-After"].isdigit(), "client-go would try ten times"
        await client.close()


async def test_warnings_of_a_refusal_come_with_it() -> None:
    """An admission webhook warns and denies in one answer; kubectl shows both."""

    async def deny(request: web.Request) -> web.Response:
        answer = status(403, "Forbidden")
        answer.headers.extend([("Warning", '299 - "one"'), ("Warning", '299 - "two"')])
        return answer

    async with KubeFake() as kube:
        kube.extra_routes = [web.delete("/x", deny)]
        await kube.stop()
        await kube.start()
        client = await KubeClient.connect(kube.kubeconfig(), name="east")
        with pytest.raises(StatusError) as denied:
            await client.request("DELETE", "/x")
        assert error_response(denied.value).headers.getall("Warning") == ['299 - "one"', '299 - "two"']
        with pytest.raises(StatusError) as denied:
            async with client.stream("DELETE", "/x"):
                pass
        assert denied.value.warnings == ('299 - "one"', '299 - "two"')
        await client.close()


async def test_renewed_connections_leave_alone_what_is_being_answered() -> None:
    peers: list[object] = []
    go_on = asyncio.Event()

    async def asked(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername"))
        return web.json_response({})

    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        await go_on.wait()
        await response.write(b"two")
        await asyncio.Event().wait()
        return response

    async with KubeFake() as kube:
        kube.extra_routes = [web.get("/asked", asked), web.get("/watch", watch)]
        await kube.stop()
        await kube.start()
        client = await KubeClient.connect(kube.kubeconfig(), name="east")
        async with client.stream("GET", "/watch") as stream:
            assert await stream.content.readany() == b"one"
            await client.request("GET", "/asked")
            await client.request("GET", "/asked")
            client.renew()
            await client.request("GET", "/asked")
            assert peers[0] == peers[1] != peers[2], "what was kept is not used any more"
            go_on.set()
            assert await stream.content.readany() == b"two"
            await client.close()
            with pytest.raises(aiohttp.ClientConnectionError):
                await stream.content.readany()


async def test_a_slow_answer_is_cut_by_the_deadline() -> None:
    async with KubeFake() as kube:
        client = await KubeClient.connect(kube.kubeconfig(), name="east")
        with pytest.raises(MemberUnreachable, match="in time"):
            await client.request("GET", "/api/v1/pods?watch=true&resourceVersion=100", timeout=0.2)
        await client.close()


async def test_401_renews_a_token_file_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    async with KubeFake() as kube:
        kube.tokens = {"old"}
        client = await KubeClient.connect(kube.kubeconfig(tokenFile=str(token)), name="east")
        await client.list(PODS)
        kube.tokens = {"new"}
        with pytest.raises(StatusError) as refused:
            await client.list(PODS)
        assert refused.value.code == 401
        token.write_text("new\n")
        before = len(kube.requests)
        # Many at once: each is sent again with the new token, none fails.
        await asyncio.gather(*(client.list(PODS) for _ in range(20)))
        assert len(kube.requests) - before <= 40
        await client.list(PODS)
        assert (await client.auth_headers()) == {"Authorization": "Bearer new"}
        await client.close()


async def test_a_refusal_that_nothing_new_is_known_for_keeps_the_connections(tmp_path: Path) -> None:
    async with KubeFake() as kube:
        config = tmp_path / "config"
        config.write_text(json.dumps(kube.kubeconfig(token="old")))
        kube.tokens = {"other"}
        client = await KubeClient.connect(config, name="east")
        before = client._transport
        with pytest.raises(StatusError):
            await client.list(PODS)
        assert client._transport is before and len(kube.requests) == 1
        config.write_text(json.dumps(kube.kubeconfig(token="other")))
        await client.list(PODS)
        async with client.stream("GET", "/api/v1/pods", check=False, renew=False) as answer:
            assert answer.status == 200
        kube.tokens, before, asked = {"third"}, client._transport, len(kube.requests)
        config.write_text(json.dumps(kube.kubeconfig(token="third")))
        async with client.stream("GET", "/api/v1/pods", check=False, renew=False) as answer:
            assert answer.status == 401, "of a pod's own server, for all we know"
        assert client._transport is before and len(kube.requests) == asked + 1
        await client.close()


async def test_a_streamed_body_is_not_sent_twice(tmp_path: Path) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"once"

    token = tmp_path / "token"
    token.write_text("old")
    async with KubeFake() as kube:
        kube.tokens = {"old"}
        client = await KubeClient.connect(kube.kubeconfig(tokenFile=str(token)), name="east")
        await client.list(PODS)
        kube.tokens = {"new"}
        token.write_text("new")
        before = len(kube.requests)
        async with client.stream("GET", "/api/v1/pods", body=body(), check=False) as answer:  # type: ignore[arg-type]
            assert answer.status == 401, "not an empty body in its place"
        assert len(kube.requests) == before + 1
        await client.close()


async def test_an_exec_plugin_is_run_again_after_401_and_before_expiry(tmp_path: Path) -> None:
    count, answer = tmp_path / "count", tmp_path / "answer"
    count.write_text("")

    def give(token: str, **more: str) -> None:
        credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                      "status": {"token": token, **more}}  # fmt: skip
        answer.write_text(json.dumps(credential))

    plugin = {"command": "sh", "args": ["-c", f"echo x >> {count}; cat {answer}"],
              "apiVersion": "client.authentication.k8s.io/v1"}  # fmt: skip
    give("one")
    async with KubeFake() as kube:
        kube.tokens = {"one"}
        client = await KubeClient.connect(kube.kubeconfig(exec=plugin), name="east")
        assert count.read_text() == ""
        await asyncio.gather(*(client.list(PODS) for _ in range(5)))
        assert count.read_text().count("x") == 1
        give("two", expirationTimestamp="2020-01-01T00:00:00Z")
        kube.tokens = {"two"}
        await client.list(PODS)
        give("three")
        kube.tokens = {"three"}
        before = len([h for h in kube.headers if h.get("Authorization") == "Bearer two"])
        await client.list(PODS)
        # The second had expired, so it was not even tried.
        assert len([h for h in kube.headers if h.get("Authorization") == "Bearer two"]) == before
        plugin_gone = await KubeClient.connect(
            kube.kubeconfig(exec={**plugin, "command": "/no/such"}), name="east"
        )
        with pytest.raises(MemberUnreachable, match="exec plugin"):
            await plugin_gone.list(PODS)
        await plugin_gone.close()
        await client.close()


async def test_reconnect_in_place_keeps_the_client_and_ends_with_no_session_open() -> None:
    async with KubeFake() as one, KubeFake() as two:
        one.tokens, two.tokens = {"a"}, {"b"}
        client = await KubeClient.connect(one.kubeconfig(token="a"), name="east")
        await client.list(PODS)
        old = client._transport
        async with client.stream("GET", "/api/v1/pods", query="watch=true&resourceVersion=100") as watch:
            one.set({"metadata": {"name": "x", "namespace": "default"}})
            await client.reconnect(two.kubeconfig(token="b"))
            await client.list(PODS)
            # A stream of the old connection goes on.
            assert await watch.content.readany()
            assert not old.session.closed
        await eventually(lambda: old.session.closed)
        assert client.server == two.url
        await client.close()
        assert client._transport.session.closed


async def test_stream_passes_bytes_and_raises_status() -> None:
    async with KubeFake() as kube:
        client = await KubeClient.connect(kube.kubeconfig(), name="east")
        with pytest.raises(StatusError) as missing:
            async with client.stream("GET", "/nope"):
                pass
        assert missing.value.code == 404
        with pytest.raises(MemberUnreachable):
            async with client.stream(
                "GET", "/api/v1/pods", query="watch=true&resourceVersion=100", sock_read=0.2
            ) as watch:
                await watch.content.readany()
        with pytest.raises(MemberUnreachable):
            async with client.stream("GET", "/api/v1/pods", query="watch=true&resourceVersion=100") as watch:
                kube.break_watches()
                while await watch.content.readany():
                    pass
        assert client._transport._users == 0
        await client.close()


async def test_tls_is_checked(tmp_path: Path) -> None:
    ca_key, ca = make_ca()
    _, other = make_ca("other")
    tls = server_tls(*make_pair(ca_key, "ca", "server"), tmp_path)
    async with KubeFake(tls, pem(ca)) as kube:
        client = await KubeClient.connect(kube.kubeconfig(), name="east")
        assert (await client.list(PODS))["items"] == []
        await client.close()
        kube._ca = pem(other)
        client = await KubeClient.connect(kube.kubeconfig(), name="east")
        with pytest.raises(MemberUnreachable, match="not trusted"):
            await client.list(PODS)
        await client.close()


async def _read_probe(client: KubeClient) -> bytes:
    reader, writer = await client.open_socket()
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: " + client.host_header.encode() + b"\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


async def test_tunnels_through_tls_and_through_a_proxy(tmp_path: Path) -> None:
    ca_key, ca = make_ca()
    tls = server_tls(*make_pair(ca_key, "ca", "server"), tmp_path)
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        host, _, port = head.split()[1].decode().rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with KubeFake(tls, pem(ca)) as kube:
        client = await KubeClient.connect(kube.kubeconfig(), name="east")
        assert b"200 OK" in await _read_probe(client)
        await client.close()
        config = kube.kubeconfig()
        config["clusters"][0]["cluster"]["proxy-url"] = f"http://me:pw@127.0.0.1:{port}"
        client = await KubeClient.connect(config, name="east")
        assert b"200 OK" in await _read_probe(client)
        assert b"Proxy-Authorization: Basic" in asked[0]
        assert (await client.list(PODS))["items"] == []
        assert len(asked) == 2
        await client.close()
    server.close()


def test_tunnels_work_under_uvloop(tmp_path: Path) -> None:
    async def run() -> bytes:
        ca_key, ca = make_ca()
        tls = server_tls(*make_pair(ca_key, "ca", "server"), tmp_path)
        async with KubeFake(tls, pem(ca)) as kube:
            client = await KubeClient.connect(kube.kubeconfig(), name="east")
            try:
                return await _read_probe(client)
            finally:
                await client.close()

    assert b"200 OK" in uvloop.run(run())


async def test_connect_refuses_what_is_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError):
        await KubeClient.connect(b"{}", name="east")
    with pytest.raises(KubeconfigError, match="missing"):
        await KubeClient.connect(tmp_path / "missing", name="east")


def test_the_fake_answers_like_kubernetes() -> None:
    assert status(404, "NotFound").status == 404
