"""Clients confined to one namespace of a server: paths, selectors, discovery documents, access that carries it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pytest
from aiohttp import web
from kube_fake import KubeFake, kubeconfig

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.kubeconfig import single
from services.common.kube.resource import NAMESPACES, NODES, PODS, SECRETS
from services.common.kube.shape import Shape, confine, confine_document, is_document, shape_of, shaped


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/pods", "/api/v1/namespaces/web/pods"),
        ("/apis/apps/v1/deployments", "/apis/apps/v1/namespaces/web/deployments"),
        ("/api/v1/namespaces/web/pods/a/log", "/api/v1/namespaces/web/pods/a/log"),
        ("/api/v1/namespaces/web/services/a/proxy/x//..", "/api/v1/namespaces/web/services/a/proxy/x//.."),
        ("/api/v1/namespaces/web", "/api/v1/namespaces/web"),
        # A cluster-scoped type below a namespace is none: the server itself says so.
        ("/api/v1/nodes/n0", "/api/v1/namespaces/web/nodes/n0"),
        ("/readyz/etcd", "/readyz/etcd"), ("/version", "/version"), ("/apis", "/apis"), ("/api/v1", "/api/v1"),
        ("/apis/apps/v1", "/apis/apps/v1"), ("/openapi/v3/api/v1", "/openapi/v3/api/v1"),
    ],
)  # fmt: skip
def test_reads_become_reads_of_the_namespace(path: str, expected: str) -> None:
    assert confine("GET", path, "limit=5", "web") == (expected, "limit=5")


def test_lists_of_namespaces_and_of_other_namespaces_are_narrowed() -> None:
    path, query = confine("GET", "/api/v1/namespaces", "watch=true&fieldSelector=status.phase%3DActive", "web")
    assert path == "/api/v1/namespaces"
    assert parse_qs(query) == {"watch": ["true"], "fieldSelector": ["status.phase=Active,metadata.name=web"]}
    path, query = confine("GET", "/apis/apps/v1/namespaces/other/deployments", "", "web")
    assert path == "/apis/apps/v1/namespaces/web/deployments"
    assert parse_qs(query) == {"fieldSelector": ["metadata.namespace=other"]}


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/namespaces/other", 404), ("GET", "/api/v1/namespaces/other/pods/a", 404),
        ("POST", "/api/v1/namespaces/other/pods", 404), ("DELETE", "/api/v1/namespaces/other/pods", 404),
        ("GET", "/api/v1/namespaces/web/../other/pods", 404), ("GET", "/api/v1/namespaces/web%2F..%2Fother/pods", 404),
        ("GET", "/api/v1%2Fnamespaces/other/pods", 404), ("GET", "/api/v1//namespaces/other/pods", 404),
        ("GET", "/api/v1/namespaces/%2e%2e/pods", 404), ("GET", "/%61pi/v1/namespaces/other/secrets/a", 404),
        ("GET", "/api/v1/namespaces/web/pods?x", 404), ("GET", "/metrics", 404), ("GET", "/logs/", 404), ("GET", "/", 404),
        ("POST", "/api/v1/nodes", 404), ("DELETE", "/api/v1/nodes", 404), ("PATCH", "/api/v1/nodes/n0", 404),
        ("POST", "/api/v1/namespaces", 403), ("DELETE", "/api/v1/namespaces", 403),
        ("DELETE", "/api/v1/namespaces/web", 403), ("PUT", "/api/v1/namespaces/web/finalize", 403),
        ("GET", "/apis/apps/v1/namespaces/web", 404),
    ],
)  # fmt: skip
def test_everything_else_is_refused(method: str, path: str, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        confine(method, path, "", "web")
    assert caught.value.code == code


def test_the_shape_travels_in_the_kubeconfig() -> None:
    plain = single(kubeconfig("east", {"server": "https://east:1"}, {"token": "t"}))
    assert shape_of(plain) == Shape()
    assert Shape().identity_path == "/api/v1/namespaces/kube-system"
    part = shaped(plain, Shape(namespace="web"))
    assert shape_of(single(part)) == Shape(namespace="web")
    assert shape_of(part).identity_path == "/api/v1/namespaces/web"
    again = shaped(part, Shape(identity="/x"), "https://east:1/clusters/a")
    assert shape_of(again) == Shape(identity="/x")
    assert again["clusters"][0]["cluster"]["server"] == "https://east:1/clusters/a"
    assert shape_of(plain) == Shape(), "the given one stays as it is"


def test_documents_are_told_by_their_path() -> None:
    documents = ("/api", "/api/", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1")
    assert all(is_document(path) for path in documents)
    assert not any(is_document(path) for path in ("/api/v1/pods", "/apis/apps/v1/deployments", "/version", "/"))


def test_discovery_documents_lose_what_is_not_served() -> None:
    types = [{"name": "nodes", "namespaced": False}, {"name": "pods", "namespaced": True}, {"name": "namespaces", "namespaced": False}]
    listed = confine_document({"kind": "APIResourceList", "groupVersion": "v1", "resources": types})
    assert [one["name"] for one in listed["resources"]] == ["pods", "namespaces"]
    versions = [{"version": "v1", "resources": [{"resource": "nodes", "scope": "Cluster"}, {"resource": "pods", "scope": "Namespaced"}]}]
    groups = confine_document({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {}, "versions": versions}]})
    assert [one["resource"] for one in groups["items"][0]["versions"][0]["resources"]] == ["pods"]


async def test_a_client_keeps_to_its_namespace_in_requests_streams_and_tunnels() -> None:
    async def types(request: web.Request) -> web.Response:
        found = [{"name": "nodes", "namespaced": False}, {"name": "pods", "namespaced": True}]
        return web.json_response({"kind": "APIResourceList", "groupVersion": "v1", "resources": found})

    async def any_path(request: web.Request) -> web.Response:
        return web.json_response({"kind": "List", "metadata": {}, "items": []})

    kube = KubeFake()
    kube.extra_routes = [web.get("/api/v1", types), web.get("/{rest:api/v1/namespaces/web/.*}", any_path)]
    async with kube:
        client = await KubeClient.connect(shaped(single(kube.kubeconfig()), Shape(namespace="web")), name="web")
        try:
            await client.list(PODS, labelSelector="a=b")
            async with client.stream("GET", SECRETS.path(), query={"watch": "true"}) as answer:
                assert answer.status == 200
            known: Any = (await client.request("GET", "/api/v1")).json()
            assert [one["name"] for one in known["resources"]] == ["pods"]
            with pytest.raises(StatusError, match="not found"):
                await client.get(NAMESPACES, None, "other")
            with pytest.raises(StatusError):
                await client.create(NODES, None, {"metadata": {"name": "n"}})
            assert client.target("GET", "/api/v1/pods?watch=1") == "/api/v1/namespaces/web/pods?watch=1"
            with pytest.raises(StatusError):
                client.target("POST", "/api/v1/namespaces/other/pods/a/exec?command=id")
        finally:
            await client.close()
    sent = [path for _, path in kube.requests]
    assert sent == ["/api/v1/namespaces/web/pods?labelSelector=a%3Db", "/api/v1/namespaces/web/secrets?watch=true", "/api/v1"]


@pytest.mark.parametrize(
    ("path", "leaves"),
    [("/../b/api/v1/secrets", True), ("/api/../../b", True), ("/api/%2e%2E/%2e./b", True), ("//../b", True),
     ("/..%2fb", True), ("/a%2Fb/../../b", True), ("/./../b", True), ("/api/v1/../v1/pods", False),
     ("/api/v1/namespaces/a/services/b/proxy/x/../y", False), ("/apis/a..b/v1", False)],
)  # fmt: skip
async def test_a_path_does_not_leave_the_cluster_of_a_server_with_many(path: str, leaves: bool) -> None:
    """Their credentials are often the same: only the path says which one is asked."""
    many = await KubeClient.connect(kubeconfig("a", {"server": "https://127.0.0.1:1/k8s/clusters/a"}), name="a")
    alone = await KubeClient.connect(kubeconfig("b", {"server": "https://127.0.0.1:1"}), name="b")
    try:
        assert alone.target("GET", path) == path
        if not leaves:
            assert many.target("GET", f"{path}?x=..") == f"/k8s/clusters/a{path}?x=.."
            return
        for asked in (lambda: many.target("GET", path), lambda: many._url("GET", path, None)):
            with pytest.raises(StatusError, match="leaves the cluster"):
                asked()
    finally:
        await many.close()
        await alone.close()
