"""What an access review was asked about is what a member gets, however a path is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from path_model import Place, place_of, unescape

from services.aggregator.front.authz import attributes_of
from services.aggregator.front.dispatch import _require_plain
from services.aggregator.front.request_info import MalformedPath, parse
from services.aggregator.types import Aggregated, Call
from services.aggregator.writes.target import member_path
from services.common.errors import StatusError
from services.common.kube.reviews import User

AGGREGATED = {
    ("", "pods"): Aggregated("pods", "", "v1", "pods", "Pod", namespaced=True),
    ("", "nodes"): Aggregated("nodes", "", "v1", "nodes", "Node", namespaced=False),
    ("apps", "controllerrevisions"): Aggregated("r", "apps", "v1", "controllerrevisions", "ControllerRevision", namespaced=True),
}

words = st.sampled_from([
    "api", "apis", "v1", "apps", "namespaces", "pods", "nodes", "controllerrevisions", "watch", "proxy", "status",
    "finalize", "exec", "log", "web", "kube-system", "a", "clusters", "east", ".", "..", "", " ", "pods;x", "w?b", "w#b",
    "é", "日本", "a\\b", "a\x00b", "a%b", "a+b", "namespaces/kube-system", "../../secrets", "web?x=y",
])  # fmt: skip
ends = st.sampled_from(["", "/", "//", "/.", "/..", "?", ";", "%", "%2", "%zz"])


def escape(text: str, how: int) -> str:
    """Percent-encoded not at all (what must be is), all, all in capitals, or twice."""
    data = text.encode()
    if how == 0:
        return "".join(chr(b) if 32 < b < 127 and chr(b) not in "?#%" else f"%{b:02x}" for b in data)
    once = "".join(f"%{b:02X}" if how == 2 else f"%{b:02x}" for b in data)
    return once if how < 3 else once.replace("%", "%25")


segments = st.builds(escape, words, st.integers(0, 3))
shapes = st.one_of(
    st.lists(segments, max_size=9),
    st.tuples(st.sampled_from([
        ["api", "v1", "namespaces"], ["api", "v1"], ["apis", "apps", "v1", "namespaces"], ["api", "v1", "watch", "namespaces"],
        ["clusters", "east", "api", "v1", "namespaces"], ["clusters", "east"],
    ]), st.lists(segments, max_size=5)).map(lambda pair: pair[0] + pair[1]),
)  # fmt: skip
paths = st.builds(
    lambda parts, slash, end: "/" + slash.join(parts) + end,
    shapes, st.sampled_from(["/", "/", "/", "//", "/./", "%2F", "%2f", "/%2e%2e/", "\\"]), ends,
)  # fmt: skip
methods = st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])


def accepted(method: str, raw_path: str) -> Call | None:
    """The call as it is authorised and let through to aggregated reads and writes; None when it never gets there."""
    try:
        info = parse(method, raw_path, "")
    except MalformedPath:
        return None
    if info.cluster is not None or not info.is_resource or (info.group, info.resource) not in AGGREGATED:
        return None
    request: Any = SimpleNamespace(method=method)
    call = Call(request, info, User("jane"))
    try:
        _require_plain(call)
    except StatusError:
        return None
    return call


@settings(max_examples=1500, deadline=None)
@given(methods, paths)
@example("DELETE", "/api/v1/namespaces/web%3F/pods/x")
@example("DELETE", "/api/v1/namespaces/web%252F..%252Fkube-system/pods/x")
@example("GET", "/api/v1/namespaces/a/pods/%2e%2e")
@example("GET", "/api/v1/namespaces/a/pods/x/%2E%2E")
@example("GET", "/api/v1/namespaces/a%2Fpods%2Fb/pods/x")
def test_members_get_what_was_authorised(method: str, raw_path: str) -> None:
    call = accepted(method, raw_path.partition("?")[0])
    if call is None:
        return
    info = call.info
    asked = attributes_of(info)
    want = Place(asked.group, asked.version, asked.namespace, asked.resource, asked.name, asked.subresource)
    one = AGGREGATED[info.group, info.resource]
    # Both ways in which members' paths are put together: reads, and writes.
    name = info.name
    if info.verb in ("list", "watch"):
        # Never in a member's path: the prefix /watch/ is rewritten to a field selector.
        name, want = "", want._replace(name="")
    built = [one.at(info.version).path(info.namespace or None, name or None, info.subresource or None)]
    if info.namespace or name or not info.subresource:
        built.append(member_path(call, info.namespace, name))
    for target in built:
        assert not set(target) & set("?#\\ ") and target.isascii() and target.isprintable()
        assert "//" not in target and not {".", ".."} & set(target.split("/"))
        if info.subresource and not name:
            continue  # a subresource of nothing: refused further on
        if not one.namespaced and info.namespace:
            continue  # 404 before anything is sent
        assert place_of(target) == want, target
    # And the request's own path, which tunnels pass on as it came.
    if info.verb not in ("list", "watch"):
        assert place_of(raw_path.partition("?")[0]) == want


@settings(max_examples=600, deadline=None)
@given(methods, paths)
def test_paths_are_read_as_kube_apiserver_reads_them(method: str, raw_path: str) -> None:
    raw = raw_path.partition("?")[0]
    try:
        info = parse(method, raw, "")
    except MalformedPath:
        assert place_of(raw) is None
        return
    if info.cluster is not None:
        return
    found = place_of(raw)
    if found is None:
        # Not a resource there either, or refused for an escape that is none.
        assert not info.is_resource or unescape(raw) is None
    else:
        assert info.is_resource
        assert (info.group, info.version, info.namespace, info.resource, info.subresource) == (
            found.group, found.version, found.namespace, found.resource, found.subresource,
        )  # fmt: skip
