"""Paths are taken apart as kube-apiserver does it."""

from __future__ import annotations

import pytest

from services.aggregator.front import request_info
from services.aggregator.front.request_info import MalformedPath, is_watch_prefix, parse


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        # The table of kube-apiserver's own test, in our words: verb group version namespace resource sub name
        ("GET", "/api/v1/namespaces", "list v1  namespaces  "),
        ("GET", "/api/v1/namespaces/other", "get v1 other namespaces  other"),
        ("GET", "/api/v1/namespaces/other/pods", "list v1 other pods  "),
        ("GET", "/api/v1/namespaces/other/pods/foo", "get v1 other pods  foo"),
        ("HEAD", "/api/v1/namespaces/other/pods/foo", "get v1 other pods  foo"),
        ("GET", "/api/v1/pods", "list v1  pods  "),
        ("HEAD", "/api/v1/pods", "list v1  pods  "),
        ("GET", "/api/v1/watch/pods", "watch v1  pods  "),
        ("GET", "/api/v1/watch/namespaces/other/pods", "watch v1 other pods  "),
        ("GET", "/api/v1/namespaces/other/pods/foo/status", "get v1 other pods status foo"),
        ("GET", "/api/v1/namespaces/other/pods/foo/proxy/a/b", "get v1 other pods proxy foo"),
        ("GET", "/api/v1/namespaces/other/finalize", "get v1 other namespaces finalize other"),
        ("PUT", "/api/v1/namespaces/other/finalize", "update v1 other namespaces finalize other"),
        ("PUT", "/api/v1/namespaces/other/status", "update v1 other namespaces status other"),
        ("POST", "/api/v1/namespaces/other/pods", "create v1 other pods  "),
        ("PUT", "/api/v1/namespaces/other/pods/foo", "update v1 other pods  foo"),
        ("PATCH", "/api/v1/namespaces/other/pods/foo", "patch v1 other pods  foo"),
        ("DELETE", "/api/v1/namespaces/other/pods/foo", "delete v1 other pods  foo"),
        ("DELETE", "/api/v1/namespaces/other/pods", "deletecollection v1 other pods  "),
        ("POST", "/apis/apps/v1/namespaces/other/deployments", "create apps/v1 other deployments  "),
        ("GET", "/apis/apps/v1/deployments", "list apps/v1  deployments  "),
        ("GET", "/apis/apps/v1/watch/namespaces/a/deployments/b", "watch apps/v1 a deployments  b"),
        ("GET", "/api/v1/proxy/namespaces/a/pods/b/c", "proxy v1 a pods  b"),
        ("GET", "/api/v1/pods?watch=true", "watch v1  pods  "),
        ("GET", "/api/v1/pods?watch=1", "watch v1  pods  "),
        ("GET", "/api/v1/pods?watch=", "watch v1  pods  "),
        ("GET", "/api/v1/pods?watch=false", "list v1  pods  "),
        ("GET", "/api/v1/pods?watch=0", "list v1  pods  "),
        ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dfoo", "list v1  pods  foo"),
        ("GET", "/api/v1/pods?fieldSelector=metadata.name==foo,spec.nodeName%3Dx&watch=1", "watch v1  pods  foo"),
        ("GET", "/api/v1/pods?fieldSelector=metadata.name!%3Dfoo", "list v1  pods  "),
        ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Da%2Fb", "list v1  pods  "),
        ("GET", "/api/v1/namespaces/a/pods/web%3A80/proxy/", "get v1 a pods proxy web:80"),
    ],
)
def test_resource_requests(method: str, path: str, expected: str) -> None:
    raw, _, query = path.partition("?")
    info = parse(method, raw, query)
    assert info.is_resource
    group = f"{info.group}/{info.version}" if info.group else info.version
    assert f"{info.verb} {group} {info.namespace} {info.resource} {info.subresource} {info.name}" == expected


@pytest.mark.parametrize("path", ["/", "/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1", "/healthz",
                                  "/openapi/v3/apis/apps/v1", "/logs/x", "/clusters", "/clusters/"])  # fmt: skip
def test_what_is_no_resource(path: str) -> None:
    info = parse("GET", path, "")
    assert (info.is_resource, info.verb, info.path, info.cluster) == (False, "get", path, None)


def test_a_member_addressed_directly() -> None:
    info = parse("GET", "/clusters/east/api/v1/namespaces/a/pods/b", "")
    assert (info.cluster, info.path, info.resource, info.name, info.verb) == (
        "east", "/api/v1/namespaces/a/pods/b", "pods", "b", "get",
    )  # fmt: skip
    assert parse("POST", "/clusters/east", "").path == "/"
    assert parse("GET", "/clusters/east/api/v1/", "").path == "/api/v1/"
    assert parse("GET", "/clusters/east/api/v1", "").verb == "get"


def test_prefix_without_resource_is_refused() -> None:
    with pytest.raises(MalformedPath):
        parse("GET", "/api/v1/watch", "")


@pytest.mark.parametrize("path", ["/api/v1/pods%", "/api/v1/pods/a%2", "/healthz%zz", "/clusters/east/%"])
def test_escapes_that_are_none_are_refused(path: str) -> None:
    with pytest.raises(MalformedPath) as caught:
        parse("GET", path, "")
    assert caught.value.code == 400


def test_watch_prefix() -> None:
    assert is_watch_prefix("/api/v1/watch/pods")
    assert is_watch_prefix("/apis/apps/v1/watch/namespaces/a/controllerrevisions")
    assert not is_watch_prefix("/api/v1/namespaces/watch/pods")


def test_what_anybody_may_send_is_not_kept_at_any_length() -> None:
    """Paths are taken apart before it is known who asks."""
    for size, kept in ((100, True), (60_000, False)):
        path = f"/api/v1/namespaces/a/pods/{'x' * size}"
        assert parse("GET", path, "").name == "x" * size
        assert (path in request_info._places) is kept
