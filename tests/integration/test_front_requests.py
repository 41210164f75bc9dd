"""Who may do what, what is passed on to the host, and what bad input is answered with."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web

from services.aggregator.config import Limits
from services.aggregator.front import limits
from services.aggregator.types import Call
from services.common import telemetry
from tests.integration.front_fakes import FakeCluster, Served, cluster, connect, front
from tests.kube.front_rig import NODES, PODS, OneMember


@pytest.fixture
def host() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def served(host: FakeCluster) -> AsyncIterator[Served]:
    async with cluster(host) as client, front(client, OneMember("east", None, [PODS, NODES])) as running:
        yield running


def sent_headers(body: dict[str, list[list[str]]]) -> list[tuple[str, str]]:
    return [(key.lower(), value) for key, value in body["headers"]]


@pytest.mark.parametrize("path", ["/api/v1/pods", "/apis", "/metrics", "/clusters/east/version", "/nothing"])
async def test_without_credentials_nothing_but_health_is_served(served: Served, path: str) -> None:
    code, body, _ = await served.ask("GET", path, token=None)
    assert (code, body["kind"], body["reason"]) == (401, "Status", "Unauthorized")


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/readyz?verbose", "/livez/ping"])
async def test_health_is_served_to_anybody(served: Served, path: str) -> None:
    code, body, _ = await served.ask("GET", path, token=None)
    assert code == 200 and b"ok" in body


async def test_wrong_tokens_are_refused_and_remembered(served: Served, host: FakeCluster) -> None:
    for _ in range(3):
        code, body, _ = await served.ask("GET", "/api/v1/configmaps", token="wrong")
        assert (code, body["reason"]) == (401, "Unauthorized")
    assert host.tokens == ["wrong"]
    assert (await served.ask("GET", "/healthz", token="wrong"))[0] == 401
    assert (await served.ask("GET", "/api", token=None, headers={"Authorization": "Basic eDp5"}))[0] == 401


async def test_the_host_sees_the_user_and_never_the_clients_credentials(served: Served) -> None:
    code, body, answer = await served.ask(
        "GET", "/api/v1/configmaps?limit=5&x=%20y", headers={"X-Remote-User": "evil", "X-Custom": "kept"}
    )
    headers = sent_headers(body)
    assert code == 200 and body["target"] == "/api/v1/configmaps?limit=5&x=%20y"
    assert ("authorization", "Bearer reclock-secret") in headers
    assert ("impersonate-user", "alice") in headers and ("impersonate-uid", "u1") in headers
    groups = [value for key, value in headers if key == "impersonate-group"]
    assert groups == ["dev", "ops", "system:authenticated"]
    extra = [value for key, value in headers if key == "impersonate-extra-example.com%2fteam"]
    assert extra == ["a", "b"]
    assert ("x-custom", "kept") in headers
    assert not any(value == "evil" or "alice-token" in value for _, value in headers)
    assert answer.headers["X-Answered-By"] == "cluster" and "Keep-Alive" not in answer.headers
    # Under the same id in the host's audit log, and in ours.
    assert ("audit-id", answer.headers["Audit-Id"]) in headers


@pytest.mark.parametrize("traced", [False, True])
async def test_a_trace_goes_on_in_the_request_to_the_host(served: Served, traced: bool) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    telemetry.enable(traced)
    try:
        _, body, _ = await served.ask("GET", "/api/v1/configmaps", headers={"traceparent": parent})
    finally:
        telemetry.enable(False)
    passed = [value for key, value in sent_headers(body) if key == "traceparent"]
    assert len(passed) == 1 and passed[0].split("-")[1] == parent.split("-")[1]


async def test_bodies_and_errors_of_the_host_pass_unchanged(served: Served, host: FakeCluster) -> None:
    async def refuse(request: web.BaseRequest) -> web.Response:
        return web.Response(status=409, body=b'{"odd":  "spacing"}', headers={"Retry-After": "7"})

    host.routes["/api/v1/namespaces/a/secrets"] = refuse
    code, body, answer = await served.ask("POST", "/api/v1/namespaces/a/secrets", data=b"{not json")
    assert (code, body, answer.headers["Retry-After"]) == (409, {"odd": "spacing"}, "7")
    code, body, _ = await served.ask("POST", "/api/v1/namespaces/a/configmaps", data=b"\x00\xff raw")
    assert (code, body["body"].encode("latin-1")) == (200, b"\x00\xff raw")


async def test_long_answers_are_streamed_as_they_come(served: Served, host: FakeCluster) -> None:
    release = asyncio.Event()

    async def watch(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"type":"ADDED"}\n')
        await release.wait()
        await response.write(b'{"type":"DELETED"}\n')
        return response

    host.routes["/api/v1/configmaps"] = watch
    url = f"http://127.0.0.1:{served.port}/api/v1/configmaps?watch=1"
    async with served.session.get(url, headers={"Authorization": "Bearer alice-token"}) as answer:
        assert await answer.content.readline() == b'{"type":"ADDED"}\n'
        release.set()
        assert await answer.content.readline() == b'{"type":"DELETED"}\n'
        assert await answer.content.read() == b""


async def test_a_watch_that_its_client_leaves_ends_on_the_host(served: Served, host: FakeCluster) -> None:
    left = asyncio.Event()

    async def watch(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"{}\n")
                await asyncio.sleep(0.01)
        except ConnectionError:
            left.set()
            raise

    host.routes["/api/v1/configmaps"] = watch
    url = f"http://127.0.0.1:{served.port}/api/v1/configmaps?watch=1"
    answer = await served.session.get(url, headers={"Authorization": "Bearer alice-token"})
    await answer.content.readline()
    answer.close()
    await asyncio.wait_for(left.wait(), 10)


async def test_an_answer_cut_short_is_cut_short_for_the_client(served: Served, host: FakeCluster) -> None:
    async def broken(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * 10)
        assert request.transport is not None
        request.transport.abort()
        return response

    host.routes["/api/v1/configmaps"] = broken
    with pytest.raises(Exception, match=r"(?i)payload|closed|disconnect"):
        await served.ask("GET", "/api/v1/configmaps")


async def test_aggregated_resources_are_authorised_by_the_host(served: Served, host: FakeCluster) -> None:
    code, body, _ = await served.ask("GET", "/api/v1/namespaces/a/pods")
    assert code == 403
    assert body["message"] == (
        'pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "a": by table'
    )
    assert body["details"] == {"kind": "pods"}
    code, body, _ = await served.ask("POST", "/api/v1/namespaces/a/pods/web/exec")
    assert body["message"] == (
        'pods "web" is forbidden: User "alice" cannot create resource "pods/exec" in API group "" in the namespace "a"'
        ": by table"
    )
    assert host.reviews[-1]["resourceAttributes"] == {
        "verb": "create", "version": "v1", "resource": "pods", "subresource": "exec", "namespace": "a", "name": "web",
    }  # fmt: skip
    assert host.reviews[-1]["groups"] == ["dev", "ops", "system:authenticated"]
    code, body, _ = await served.ask("GET", "/metrics")
    assert body["message"] == 'forbidden: User "alice" cannot get path "/metrics": by table'


async def test_access_reviews_are_shared_and_kept(served: Served, host: FakeCluster) -> None:
    host.allow = lambda spec: True
    answers = await asyncio.gather(*(served.ask("GET", "/api/v1/namespaces/a/pods") for _ in range(8)))
    assert {code for code, _, _ in answers} == {404}  # allowed; this test's reads have nothing
    assert len(host.reviews) == 1 and len(host.tokens) == 1


async def test_administrators_need_no_review(served: Served, host: FakeCluster) -> None:
    assert (await served.ask("GET", "/metrics", token="root-token"))[0] == 200
    assert host.reviews == []


async def test_impersonation_is_authorised_and_replaces_the_user(served: Served, host: FakeCluster) -> None:
    headers = {"Impersonate-User": "bob"}
    code, body, _ = await served.ask("GET", "/api/v1/configmaps", headers=headers)
    assert code == 403
    assert body["message"].startswith(
        'users "bob" is forbidden: User "alice" cannot impersonate resource "users" in API group "" at the cluster scope'
    )
    host.allow = lambda spec: spec["resourceAttributes"]["verb"] == "impersonate"
    account = {"Impersonate-User": "system:serviceaccount:ns:robot"}
    code, body, _ = await served.ask("GET", "/api/v1/configmaps", headers=account)
    passed = sent_headers(body)
    assert ("impersonate-user", "system:serviceaccount:ns:robot") in passed
    assert [value for key, value in passed if key == "impersonate-group"] == [
        "system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated",
    ]  # fmt: skip
    assert host.reviews[-1]["resourceAttributes"]["resource"] == "serviceaccounts"
    assert (await served.ask("GET", "/api", headers={"Impersonate-Group": "x"}))[0] == 400


@pytest.mark.parametrize(
    ("method", "media", "body", "code", "says"),
    [
        ("POST", "application/json", b"{nonsense", 400, "json parse error"),
        ("POST", "text/plain", b"{}", 415, "accepted media types include: application/json"),
        ("PUT", "application/json", b"", 400, "json parse error"),
        ("PATCH", "application/unknown-patch+json", b"{}", 415, "application/strategic-merge-patch+json"),
        ("PATCH", "application/json", b"{}", 415, "application/json-patch+json"),
        ("PATCH", "application/merge-patch+json", b"nope", 400, "error decoding patch"),
        ("POST", "application/json", b"[" * 200_000, 400, "json parse error"),
        ("POST", "application/json", b"x" * (3 * 1024 * 1024 + 1), 413, "limit is 3145728"),
    ],
)
async def test_bad_bodies(served: Served, method: str, media: str, body: bytes, code: int, says: str) -> None:
    path = "/api/v1/namespaces/a/pods" + ("" if method == "POST" else "/web")
    got, status, _ = await served.ask(
        method, path, token="root-token", headers={"Content-Type": media}, data=body
    )
    assert (got, status["kind"], status["code"]) == (code, "Status", code)
    assert says in status["message"]


async def test_a_chunked_body_above_the_limit_is_refused(served: Served) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(13):
            yield b" " * 256 * 1024

    url = f"http://127.0.0.1:{served.port}/api/v1/namespaces/a/pods"
    headers = {"Authorization": "Bearer root-token", "Content-Type": "application/json"}
    async with served.session.post(url, data=chunks(), headers=headers) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("POST", "/api/v1/pods", 405), ("DELETE", "/api/v1/pods", 405), ("GET", "/api/v1/pods/web", 404),
        ("GET", "/api/v1/namespaces/a/nodes", 404), ("OPTIONS", "/api/v1/nodes", 405),
        ("POST", "/apis/reclock.dev/v1alpha1/namespaces/a/versionmarkers", 405), ("GET", "/api/v1/watch", 404),
        ("GET", "/clusters/nowhere/api", 404), ("POST", "/api/v1/namespaces/a/pods/web", 405),
    ],
)  # fmt: skip
async def test_requests_of_no_sense(served: Served, method: str, path: str, code: int) -> None:
    got, body, _ = await served.ask(
        method,
        path,
        token="root-token",
        headers={"Content-Type": "application/json"},
        data=b"{}" if method == "POST" else None,
    )
    assert (got, body["kind"], body["code"]) == (code, "Status", code)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/v1/namespaces/a%3F/pods"), ("GET", "/api/v1/namespaces/a%23/pods"),
        ("DELETE", "/api/v1/namespaces/a%3fx=/pods/web"), ("GET", "/api/v1/namespaces/a/pods/web%3Fwatch=1"),
        ("GET", "/api/v1/namespaces/a/pods/.."), ("DELETE", "/api/v1/namespaces/a/pods/%2e%2e"),
        ("GET", "/api/v1/namespaces/%2e%2e/pods"), ("PATCH", "/api/v1/namespaces/a/pods/web/status%3Fa"),
        ("DELETE", "/api/v1%3F/namespaces/a/pods"), ("GET", "/api/v1/namespaces/a/pods/web%20x/log"),
        ("GET", "/api/v1/namespaces/a/pods/web%0d%0aX:%20y"), ("GET", "/api/v1/namespaces/a/pods/web%25"),
    ],
)  # fmt: skip
async def test_a_path_that_would_be_another_one_on_a_member_reaches_none(
    served: Served, method: str, path: str
) -> None:
    # Not through a client library: those resolve dots themselves.
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root-token\r\n\r\n"
    writer.write(head.encode())
    assert int((await reader.readline()).split()[1]) == 404
    writer.close()
    assert served.member.calls == []


@pytest.mark.parametrize("path", [
    "/api/v1%252Fsecrets", "/apis/apps%252Fv1/deployments", "/apis/apps/v1%252Fnamespaces%252Fa%252Fdeployments",
    "/api/v1%3Fwatch", "/apis/apps%3Fx", "/openapi/v3/api%252Fv1", "/api/%252e%252e",
])  # fmt: skip
async def test_a_document_is_no_way_to_ask_the_host_as_reclock(served: Served, host: FakeCluster, path: str) -> None:
    host.allow = lambda spec: "nonResourceAttributes" in spec  # discovery is for everybody
    await served.ask("GET", path)
    asked = [one for one in host.requests if not one.path.endswith("reviews") and one.path not in ("/api", "/apis")]
    assert asked
    for one in asked:
        assert one.headers.get("Impersonate-User") == "alice", f"asked as Reclock: {one.raw_path}"
        assert one.raw_path == path


@pytest.mark.parametrize(("resource", "ours"), [("clusters", True), ("gadgets", False), ("placementpolicies", False)])
async def test_forgetting_a_cluster_needs_the_right_to_just_that(
    served: Served, host: FakeCluster, resource: str, ours: bool
) -> None:
    forgotten: list[str] = []

    class Pages:
        async def forget(self, call: Call) -> web.Response:
            forgotten.append(call.info.name)
            return web.json_response({})

    served.running._dispatch._pages = Pages()  # type: ignore[assignment]
    host.allow = lambda spec: spec.get("resourceAttributes", {}).get("subresource") == "forget"
    await served.ask("POST", f"/apis/reclock.dev/v1alpha1/{resource}/east/forget", data=b"{}")
    assert forgotten == (["east"] if ours else [])


async def test_a_version_that_nobody_serves_is_404(served: Served, host: FakeCluster) -> None:
    async def index(request: web.BaseRequest) -> web.StreamResponse:
        resources = [{"resource": "pods", "verbs": ["list"]}] if request.path == "/api" else []
        versions = [{"version": "v1", "resources": resources}]
        return web.json_response({"items": [{"metadata": {"name": ""}, "versions": versions}]})

    host.routes["/api"] = host.routes["/apis"] = index
    got, body, _ = await served.ask("GET", "/api/v2/namespaces/a/pods", token="root-token")
    assert (got, body["reason"]) == (404, "NotFound")
    assert served.member.calls == []


@pytest.mark.parametrize(
    ("header", "code"), [(b"Authorization: Bearer \xe9", 401), (b"Impersonate-User: u\xe9", 400)]
)
async def test_headers_that_are_no_text(served: Served, header: bytes, code: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    credentials = b"" if b"Bearer" in header else b"Authorization: Bearer root-token\r\n"
    writer.write(b"GET /api/v1/pods HTTP/1.1\r\nHost: x\r\n" + credentials + header + b"\r\n\r\n")
    assert int((await reader.readline()).split()[1]) == code
    writer.close()


async def test_the_host_away_is_503_with_a_hint(host: FakeCluster) -> None:
    async with cluster(host) as client:
        pass
    again = await connect(host.port)
    async with front(again, OneMember("east", None, [PODS])) as served:
        code, body, answer = await served.ask("GET", "/api/v1/configmaps")
        assert (code, body["reason"], answer.headers["Retry-After"]) == (503, "ServiceUnavailable", "1")
        assert (await served.ask("GET", "/healthz", token=None))[0] == 200
    await again.close()
    await client.close()


async def test_too_many_requests_of_one_user_are_429(host: FakeCluster) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(request: web.BaseRequest) -> web.Response:
        entered.set()
        await release.wait()
        return web.Response(text="done")

    host.routes["/api/v1/slow"] = slow
    member = OneMember("east", None, [PODS])
    async with cluster(host) as client, front(client, member, limits=Limits(requests=1, streams=1)) as served:
        first = asyncio.create_task(served.ask("GET", "/api/v1/slow"))
        await entered.wait()
        code, body, answer = await served.ask("GET", "/api/v1/configmaps")
        assert (code, body["reason"], answer.headers["Retry-After"]) == (429, "TooManyRequests", "1")
        assert (await served.ask("GET", "/api/v1/configmaps", token="root-token"))[0] == 200
        release.set()
        assert (await first)[0] == 200
        assert (await served.ask("GET", "/api/v1/configmaps"))[0] == 200


async def test_malformed_http_is_answered_with_a_status(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET / NONSENSE\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert json.loads(body)["kind"] == "Status"


async def test_creates_of_what_nobody_acts_on_come_with_a_warning(served: Served) -> None:
    path = "/apis/autoscaling/v2/namespaces/a/horizontalpodautoscalers"
    code, _, answer = await served.ask("POST", path, data=b"{}")
    assert code == 200
    assert answer.headers["Warning"].startswith(
        '299 - "horizontalpodautoscalers: stored, but Reclock does not scale'
    )
    assert "next step" in answer.headers["Warning"]
    _, _, answer = await served.ask("GET", path)
    assert "Warning" not in answer.headers


async def test_a_load_balancer_is_stored_whole_and_with_a_warning(served: Served) -> None:
    path, body = "/api/v1/namespaces/a/services", b'{"spec":{"type":"LoadBalancer"}}'
    code, stored, answer = await served.ask("POST", path, data=body)
    assert (code, stored["body"]) == (200, body.decode()), "what was looked at is passed on as well"
    assert "<pending>" in answer.headers["Warning"]

    async def chunks() -> AsyncIterator[bytes]:
        yield body

    url, headers = f"http://127.0.0.1:{served.port}{path}", {"Authorization": "Bearer alice-token"}
    async with served.session.post(url, data=chunks(), headers=headers) as answer:
        assert (await answer.json())["body"] == body.decode(), "a stream is not looked at: it passes once"
        assert "Warning" not in answer.headers
    _, _, answer = await served.ask("POST", path, data=b'{"spec":{"type":"ClusterIP"}}')
    assert "Warning" not in answer.headers


async def test_a_namespace_that_has_to_wait_for_a_cluster_says_so(served: Served) -> None:
    east = served.member.members["east"] = SimpleNamespace(client=None, reachable=True)
    for reachable in (True, False):
        east.reachable = reachable
        _, _, answer = await served.ask("DELETE", "/api/v1/namespaces/a")
        assert ("east cannot be reached" in answer.headers.get("Warning", "")) is not reachable
    _, _, answer = await served.ask("GET", "/api/v1/namespaces/a")
    assert "Warning" not in answer.headers


async def test_the_deprecated_watch_path_becomes_a_query(served: Served) -> None:
    await served.ask("GET", "/api/v1/watch/namespaces/a/pods/web?resourceVersion=5", token="root-token")
    call = served.member.calls[-1]
    assert call.info.verb == "watch"
    assert call.request.rel_url.path == "/api/v1/namespaces/a/pods"
    assert call.query == {"watch": "true", "fieldSelector": "metadata.name=web", "resourceVersion": "5"}


@pytest.mark.parametrize("path", ["/api/v1/%77atch/namespaces/a/pods/web", "/api/v1/watch/namespaces/a/pods/w%25b%3F"])
async def test_the_deprecated_watch_path_may_be_encoded(served: Served, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root-token\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
    writer.close()
    assert b" 500 " not in answer, answer
    call = served.member.calls[-1]
    assert call.info.verb == "watch"
    assert call.query["fieldSelector"] == f"metadata.name={call.info.name}"


async def test_a_write_goes_on_when_its_client_leaves(host: FakeCluster) -> None:
    member = OneMember("east", None, [PODS])
    entered, release, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(call: object, aggregated: object) -> web.Response:
        entered.set()
        await release.wait()
        finished.set()
        return web.Response(text="{}")

    member.handle = slow  # type: ignore[method-assign, assignment]
    async with cluster(host) as client, front(client, member) as served:
        headers = {"Content-Type": "application/json"}
        path = "/api/v1/namespaces/a/pods"
        request = asyncio.create_task(
            served.ask("POST", path, token="root-token", headers=headers, data=b"{}")
        )
        await entered.wait()
        request.cancel()
        await asyncio.sleep(0.05)
        release.set()
        await asyncio.wait_for(finished.wait(), 5)


async def test_a_401_of_the_host_is_about_us_and_not_the_client(served: Served, host: FakeCluster) -> None:
    async def refuse(request: web.BaseRequest) -> web.Response:
        return web.Response(status=401)

    host.routes["/api/v1/configmaps"] = refuse
    code, body, _ = await served.ask("GET", "/api/v1/configmaps")
    assert code == 503 and "credentials that Reclock has" in body["message"]


async def test_a_401_of_a_pods_own_server_is_the_clients(served: Served, host: FakeCluster) -> None:
    async def ask_for_password(request: web.BaseRequest) -> web.Response:
        return web.Response(status=401, text="who are you?", headers={"WWW-Authenticate": 'Basic realm="grafana"'})

    async def refuse(request: web.BaseRequest) -> web.Response:
        return web.json_response({"kind": "Status", "apiVersion": "v1", "code": 401, "reason": "Unauthorized"}, status=401)

    path = "/api/v1/namespaces/a/services/grafana/proxy/login"
    host.routes[path] = ask_for_password
    code, body, answer = await served.ask("GET", path)
    assert code == 401 and body == b"who are you?"
    assert answer.headers["WWW-Authenticate"] == 'Basic realm="grafana"'
    host.routes[path] = refuse
    code, body, _ = await served.ask("GET", path)
    assert code == 503 and "credentials that Reclock has" in body["message"]


async def test_a_token_in_a_subprotocol_is_not_passed_on_without_an_upgrade_either(served: Served) -> None:
    token = base64.urlsafe_b64encode(b"alice-token").decode().rstrip("=")
    protocols = f"base64url.bearer.authorization.k8s.io.{token}, v4.channel.k8s.io"
    _, body, _ = await served.ask("GET", "/api/v1/configmaps", token=None, headers={"Sec-WebSocket-Protocol": protocols})
    headers = dict(sent_headers(body))
    assert headers["sec-websocket-protocol"] == "v4.channel.k8s.io" and headers["impersonate-user"] == "alice"


async def test_a_body_that_does_not_come_is_not_waited_for_long(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_TIMEOUT", 0.2)
    head = "PUT /api/v1/namespaces/a/configmaps/b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice-token\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
    writer.close()
    assert b" 504 " in answer


async def test_stopping_ends_watches_at_once_and_lets_writes_finish(host: FakeCluster) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def watch(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        entered.set()
        await asyncio.Event().wait()
        return response

    async def slow(call: object, aggregated: object) -> web.Response:
        await release.wait()
        return web.json_response({"written": True})

    host.routes["/api/v1/configmaps"] = watch
    member = OneMember("east", None, [PODS])
    member.handle = slow  # type: ignore[method-assign, assignment]
    async with cluster(host) as client, front(client, member) as served:
        watching = asyncio.create_task(served.ask("GET", "/api/v1/configmaps?watch=1", token="root-token"))
        headers = {"Content-Type": "application/json"}
        path = "/api/v1/namespaces/a/pods"
        writing = asyncio.create_task(
            served.ask("POST", path, token="root-token", headers=headers, data=b"{}")
        )
        await entered.wait()
        stopping = asyncio.create_task(served.running.stop())
        with pytest.raises(aiohttp.ClientError):
            await watching
        assert not stopping.done()
        release.set()
        assert (await writing)[1] == {"written": True}
        await stopping


async def test_version_is_the_hosts_with_our_mark(served: Served, host: FakeCluster) -> None:
    async def version(request: web.BaseRequest) -> web.Response:
        return web.json_response({"major": "1", "gitVersion": "v1.34.4"})

    host.routes["/version"] = version
    code, body, _ = await served.ask("GET", "/version", token=None)
    assert (code, body) == (200, {"major": "1", "gitVersion": "v1.34.4+reclock"})


async def test_big_documents_are_compressed_for_who_takes_it(served: Served, host: FakeCluster) -> None:
    async def openapi(request: web.BaseRequest) -> web.Response:
        return web.json_response({"swagger": "2.0", "definitions": {f"d{n}": {"description": "x" * 99} for n in range(2000)}})

    async def nothing(request: web.BaseRequest) -> web.Response:
        return web.json_response({"kind": "APIGroupDiscoveryList", "items": []})

    host.routes |= {"/openapi/v2": openapi, "/api": nothing, "/apis": nothing}
    code, packed, answer = await served.ask("GET", "/openapi/v2", token="root-token", headers={"Accept-Encoding": "gzip"})
    assert (code, answer.headers["Content-Encoding"]) == (200, "gzip")
    plain = gzip.decompress(packed)
    assert b"VersionMarker" in plain and len(packed) < len(plain) / 10
    code, body, answer = await served.ask("GET", "/openapi/v2", token="root-token", headers={"Accept-Encoding": "identity"})
    assert body == json.loads(plain) and "Content-Encoding" not in answer.headers
    headers = {"If-None-Match": answer.headers["ETag"]}
    assert (await served.ask("GET", "/openapi/v2", token="root-token", headers=headers))[0] == 304


async def test_documents_are_served_from_memory_while_the_host_is_away(served: Served, host: FakeCluster) -> None:
    async def groups(request: web.BaseRequest) -> web.Response:
        return web.json_response({"kind": "APIGroupList", "groups": [{"name": "apps", "versions": [{"version": "v1"}]}]})

    async def away(request: web.BaseRequest) -> web.StreamResponse:
        raise ConnectionResetError

    host.routes["/apis"] = groups
    first = await served.ask("GET", "/apis", token="root-token")
    host.routes = dict.fromkeys(("/apis", "/api"), away)
    again = await served.ask("GET", "/apis", token="root-token")
    assert (first[0], again[0]) == (200, 200) and first[1] == again[1]
    assert [group["name"] for group in again[1]["groups"]] == ["apps", "reclock.dev"]


async def test_before_the_fleet_is_known_no_answer_looks_complete(host: FakeCluster) -> None:
    member = OneMember("east", None, [PODS, NODES])
    member.missing = "discovery is away"
    host.allow = lambda spec: True
    paths = [("GET", "/api/v1/pods"), ("GET", "/api/v1/pods?watch=true"), ("GET", "/api/v1/namespaces/a/pods/p"),
             ("POST", "/api/v1/namespaces/a/pods"), ("DELETE", "/api/v1/namespaces/a/pods"),
             ("GET", "/clusters/east/api/v1/pods")]  # fmt: skip
    async with cluster(host) as client, front(client, member) as served:
        for method, path in paths:
            code, body, answer = await served.ask(method, path)
            assert (code, body["reason"]) == (503, "ServiceUnavailable"), path
            assert "discovery is away" in body["message"]
            assert int(answer.headers["Retry-After"]) > 0
        assert (await served.ask("GET", "/api/v1/configmaps"))[0] == 200, "the host's own are served"
        assert not member.calls
