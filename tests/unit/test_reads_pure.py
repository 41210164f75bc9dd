"""Reads' pure parts: Accept, selectors, tokens, merging, Tables, frames."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fastpath.listing import Item
from services.aggregator.reads.fields import KNOWN, check_fields, value_of
from services.aggregator.reads.frames import Frames, with_type
from services.aggregator.reads.merge import Merge
from services.aggregator.reads.negotiate import Negotiated, _kept, negotiate, prefers_protobuf
from services.aggregator.reads.respond import accepts_gzip
from services.aggregator.reads.selectors import parse_fields
from services.aggregator.reads.table import Columns, columns_in
from services.aggregator.reads.tokens import Token, TokenCodec, member_token, scope_of
from services.common.errors import StatusError
from services.common.kube.labels import parse_labels

KUBECTL = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)


@pytest.mark.parametrize(("accept", "kind", "version"), [
    ("", "object", ""), ("*/*", "object", ""), ("application/*", "object", ""), (KUBECTL, "table", "v1"),
    ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", "table", "v1beta1"),
    ("application/json;as=Table;v=v2;g=meta.k8s.io, application/json", "object", ""),
    ("application/vnd.kubernetes.protobuf, application/json", "object", ""),
    ("application/vnd.kubernetes.protobuf;q=1,*/*;q=0.1", "object", ""),
    ("application/cbor,application/json", "object", ""),
    ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "partial", "v1"),
    ("application/json;q=0.5,application/json;as=Table;v=v1;g=meta.k8s.io", "table", "v1"),
    ("application/json;stream=watch", "object", ""),
])  # fmt: skip
def test_accept(accept: str, kind: str, version: str) -> None:
    form = negotiate(accept)
    assert (form.kind, form.version) == (kind, version)


@pytest.mark.parametrize("accept", [
    "application/vnd.kubernetes.protobuf", "text/html", "application/json;q=0", "application/json;as=Nothing",
    "application/json;as=Table;v=v1;g=other", "application/json;stream=other", "application/cbor",
])  # fmt: skip
def test_refused_accept(accept: str) -> None:
    with pytest.raises(StatusError) as caught:
        negotiate(accept)
    assert caught.value.code == 406


def test_protobuf_where_it_can_be_given() -> None:
    proto, partial = "application/vnd.kubernetes.protobuf", ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    assert negotiate(proto, protobuf=True) == Negotiated(protobuf=True)
    assert negotiate(f"{proto},application/json", protobuf=True).protobuf
    assert not negotiate(f"application/json,{proto}", protobuf=True).protobuf
    assert not negotiate("*/*", protobuf=True).protobuf
    assert negotiate(proto + partial, partial_protobuf=True) == Negotiated("partial", "v1", protobuf=True)
    assert negotiate(f"{proto}{partial},application/json{partial}") == Negotiated("partial", "v1")
    table = ";as=Table;g=meta.k8s.io;v=v1"
    both = f"{proto}{table},application/json{table}"
    assert negotiate(both, protobuf=True, partial_protobuf=True) == Negotiated("table", "v1"), "a Table never is"
    with pytest.raises(StatusError):
        negotiate(proto + table, protobuf=True, partial_protobuf=True)


def test_a_status_comes_in_what_the_client_likes_best() -> None:
    proto = "application/vnd.kubernetes.protobuf"
    assert prefers_protobuf(proto) and prefers_protobuf(f"{proto},application/json")
    assert not prefers_protobuf("") and not prefers_protobuf(f"application/json,{proto}")
    assert not prefers_protobuf(f"{proto};as=Table;g=meta.k8s.io;v=v1") and not prefers_protobuf("text/html")


def test_pretty() -> None:
    assert negotiate("application/json;pretty=1").pretty
    assert negotiate("", query={"pretty": "true"}).pretty and not negotiate("", query={"pretty": "0"}).pretty
    assert negotiate("*/*", user_agent="curl/8").pretty and not negotiate("*/*", user_agent="kubectl").pretty
    assert not negotiate("", query={"pretty": "false"}, user_agent="curl/8").pretty


def test_what_members_are_asked_for() -> None:
    assert Negotiated("table", "v1").accept(many=True) == "application/json;as=Table;v=v1;g=meta.k8s.io"
    assert "PartialObjectMetadataList" in Negotiated("partial", "v1").accept(many=True)
    assert "PartialObjectMetadata;" in Negotiated("partial", "v1").accept(many=False)


def test_gzip_acceptance() -> None:
    assert accepts_gzip("gzip, deflate") and accepts_gzip("deflate;q=1, GZIP;q=0.5")
    assert not accepts_gzip("identity") and not accepts_gzip("gzip;q=0") and not accepts_gzip("")


@pytest.mark.parametrize(("text", "labels", "matches"), [
    ("", {}, True), ("a", {"a": ""}, True), ("a", {}, False), ("!a", {}, True), ("!a", {"a": "1"}, False),
    ("a=1", {"a": "1"}, True), ("a==1", {"a": "2"}, False), ("a!=1", {}, True), ("a!=1", {"a": "1"}, False),
    ("a in (1,2)", {"a": "2"}, True), ("a in (1,2)", {}, False), ("a notin (1,2)", {}, True),
    ("a notin (1)", {"a": "1"}, False), ("a in ()", {"a": ""}, True), ("a in (,x)", {"a": ""}, True),
    ("a=", {"a": ""}, True), ("a=,b", {"a": "", "b": "1"}, True), ("x.io/a=1,b=2", {"x.io/a": "1", "b": "2"}, True),
    ("a>1", {"a": "2"}, True), ("a<1", {"a": "2"}, False), ("a>1", {"a": "x"}, False), ("in in (in)", {"in": "in"}, True),
    (" a = 1 , b ", {"a": "1", "b": ""}, True),
])  # fmt: skip
def test_label_selectors(text: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_labels(text).matches(labels) is matches


@pytest.mark.parametrize("text", [
    "a b", "=1", "a=1,", ",", "a in 1", "a in (1", "a in (1 2)", "a=(", "!", "a>x", "-a=1", "a=-", "a" * 64, "a=" + "b" * 64,
    "x/y/z", "/a", "UP/a", "a==1=2", "(a)",
])  # fmt: skip
def test_bad_label_selectors(text: str) -> None:
    with pytest.raises(StatusError) as caught:
        parse_labels(text)
    assert caught.value.code == 400 and caught.value.message


@given(st.text(alphabet="ab=!<>(), in\t/.-", max_size=30))
def test_label_parser_never_breaks(text: str) -> None:
    try:
        parse_labels(text).matches({"a": "b"})
    except StatusError as error:
        assert error.code == 400


def test_field_selectors() -> None:
    chosen = parse_fields(r"spec.nodeName=a\,b\=c,status.phase!=Running,metadata.name==x")
    assert chosen.exact("spec.nodeName") == "a,b=c" and chosen.exact("status.phase") is None
    assert chosen.matches({"spec.nodeName": "a,b=c", "status.phase": "", "metadata.name": "x"})
    assert not chosen.matches({"spec.nodeName": "a,b=c", "status.phase": "Running", "metadata.name": "x"})
    assert parse_fields(chosen.text) == chosen
    assert [t.field for t in chosen.on_names.terms] == ["metadata.name"]
    for bad in ("x", r"a=\x", "a=b=c", "a=\\"):
        with pytest.raises(StatusError):
            parse_fields(bad)


def test_fields_by_type() -> None:
    assert check_fields(parse_fields("spec.host=a"), "", "pods", True).exact("spec.nodeName") == "a"
    check_fields(parse_fields("spec.color=a"), "example.com", "widgets", True)  # members know
    for bad, resource, namespaced in (("spec.x=1", "pods", True), ("metadata.namespace=a", "nodes", False)):
        with pytest.raises(StatusError) as caught:
            check_fields(parse_fields(bad), "", resource, namespaced)
        assert caught.value.message.startswith("field label not supported")


def test_every_selectable_field_has_its_value() -> None:
    parts = {part: f"the {part}" for part in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")}
    spec = {"nodeName": "n", "restartPolicy": "Always", "schedulerName": "s", "serviceAccountName": "a", "hostNetwork": True}
    status = {"phase": "Running", "podIP": "1.2.3.4", "nominatedNodeName": "m"}
    about = {"reason": "r", "type": "Normal"}
    objects: dict[tuple[str, str], dict[str, Any]] = {
        ("", "pods"): {"spec": spec, "status": status},
        ("", "nodes"): {"spec": {"unschedulable": True}},
        ("", "events"): {"involvedObject": parts, "source": {"component": "c"}, "reportingComponent": "k", **about},
        ("events.k8s.io", "events"): {"regarding": parts, "reportingController": "k", **about},
        ("apps", "controllerrevisions"): {},
    }
    other = {"spec.hostNetwork": "true", "spec.unschedulable": "true", "source": "c", "status.podIPs": "1.2.3.4"}
    assert objects.keys() == KNOWN.keys()
    for (group, resource), fields in KNOWN.items():
        for field in fields:
            obj: Any = objects[group, resource]
            want = other.get(field)
            if want is None:
                want = obj
                for part in field.split("."):
                    want = want[part]
            assert value_of(obj, field, group, resource) == want, field
            assert value_of({}, field, group, resource) in ("", "false"), field
    pod = {"spec": {}, "status": {"podIPs": [{"ip": "1.2.3.4"}]}}
    assert value_of(pod, "spec.hostNetwork", "", "pods") == "false"
    assert value_of(pod, "status.podIP", "", "pods") == "1.2.3.4"
    assert value_of({"spec": {"unschedulable": True}}, "spec.unschedulable", "", "nodes") == "true"
    assert value_of({"reportingComponent": "k"}, "source", "", "events") == "k"


def test_tokens_are_whole_or_refused() -> None:
    codec = TokenCodec("fleet", b"secret")
    token = Token(scope_of("pods", "", "", ""), "ns/a", 42, {"east": ("abc", 7)})
    text = codec.encode(token)
    assert codec.decode(text, token.scope) == token
    for other in (TokenCodec("fleet", b"other"), TokenCodec("another", b"secret")):
        with pytest.raises(StatusError):
            other.decode(text, token.scope)
    rng = random.Random(1)
    for _ in range(200):
        i = rng.randrange(len(text))
        broken = text[:i] + rng.choice("ABCxyz09-_") + text[i + 1 :]
        if codec_bytes(broken) != codec_bytes(text):
            with pytest.raises(StatusError) as caught:
                codec.decode(broken, token.scope)
            assert caught.value.code == 400
    assert "secret" not in repr(codec)


def codec_bytes(text: str) -> bytes:
    import base64

    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_members_own_token_is_kubernetes_format() -> None:
    import base64

    raw = json.loads(base64.urlsafe_b64decode(member_token(7, "ns/a") + "=="))
    assert raw == {"v": "meta.k8s.io/v1", "rv": 7, "start": "ns/a\0"}


class Source:
    """Gives its keys in pieces, some of them late."""

    def __init__(self, keys: list[str], rng: random.Random) -> None:
        self.rest = deque(keys)
        self.ready: list[Item] = []
        self.rng = rng

    async def more(self) -> bool:
        await asyncio.sleep(0)
        for _ in range(self.rng.randint(1, 4)):
            if self.rest:
                meta = SimpleNamespace(namespace="", name=self.rest.popleft(), version="1")
                self.ready.append(Item(b"", meta, 0))
        return bool(self.ready)

    def take(self) -> list[Item]:
        taken, self.ready = self.ready, []
        return taken


@given(st.lists(st.lists(st.text("abc/-", min_size=1, max_size=3), max_size=20), max_size=5), st.integers(1, 9))
async def test_merge_is_a_merge(parts: list[list[str]], most: int) -> None:
    rng = random.Random(len(parts) + most)
    merge = Merge([Source(sorted(part), rng) for part in parts])
    found: list[tuple[str, int]] = []
    while items := await merge.next(most):
        assert len(items) <= most
        found += [(item.key, item.source) for item in items]
    assert found == sorted((key, i) for i, part in enumerate(parts) for key in part)
    assert not merge.waiting


def test_columns_of_members_become_one_set() -> None:
    columns = Columns()
    columns.learn("east", [{"name": "Name", "format": "name"}, {"name": "Age"}])
    columns.learn("west", [{"name": "Phase"}, {"name": "Age"}, {"name": "Name", "format": "name"}])
    columns.learn("west", [])  # later events do not repeat them
    layout = columns.layout()
    assert [c["name"] for c in json.loads(layout.definitions)] == ["Name", "Cluster", "Age", "Phase"]
    row = layout.row("west", columns.places("west"), b'{"cells":["p","1d","x"],"object":null}')
    assert json.loads(row)["cells"] == ["x", "west", "1d", "p"]
    row = layout.row("east", columns.places("east"), b'{"cells":["x","1d"],"object":null}')
    assert json.loads(row)["cells"] == ["x", "east", "1d", None]
    assert len(json.loads(layout.blank_row(b"null"))["cells"]) == 4


def test_cluster_of_an_event_stands_before_its_message() -> None:
    columns = Columns()
    plain = ("Last Seen", "Type", "Reason", "Object", "Message")
    shown = [{"name": name, "format": "", "priority": 0} for name in plain]
    columns.learn("east", [*shown, {"name": "Name", "format": "name", "priority": 1}])
    layout = columns.layout()
    names = [c["name"] for c in json.loads(layout.definitions)]
    assert names == ["Last Seen", "Type", "Reason", "Object", "Cluster", "Message", "Name"]
    row = layout.row("east", columns.places("east"), b'{"cells":["1m","Normal","Pulled","pod/a","text","a.1"]}')
    assert json.loads(row)["cells"] == ["1m", "Normal", "Pulled", "pod/a", "east", "text", "a.1"]


def test_columns_in_either_place() -> None:
    head = b'{"kind":"Table","columnDefinitions":[{"name":"Name"}],"rows":'
    assert columns_in(head) == [{"name": "Name"}]
    assert columns_in(b'{"rows":', b',"columnDefinitions":[{"name":"Name"}]}') == [{"name": "Name"}]
    assert columns_in(b'{"columnDefinitions":null,"rows":') == []


def test_labels_are_put_without_touching_the_rest() -> None:
    body = b'{"kind":"Pod","metadata":{"name":"a","labels":{"x":"1"},"generation":10000000000000000001},"spec":{"f":1.50e+3}}'
    changed = Frames.with_labels(body, {"y": "2"})
    assert json.loads(changed)["metadata"]["labels"] == {"y": "2"}
    assert b"10000000000000000001" in changed and b"1.50e+3" in changed
    assert "labels" not in json.loads(Frames.with_labels(body, {}))["metadata"]


def test_elements_of_typed_lists_get_their_type() -> None:
    assert json.loads(with_type(b'{"metadata":{}}', "Pod", "v1")) == {"kind": "Pod", "apiVersion": "v1", "metadata": {}}
    whole = b'{"kind":"Pod","apiVersion":"v1","metadata":{}}'
    assert with_type(whole, "Other", "v2") is whole


def test_long_accept_headers_are_read_and_not_kept() -> None:
    """They are read for errors too, before it is known who asks; each clause takes some hundred bytes."""
    before = _kept.cache_info().currsize
    long = ",".join(["a/b"] * 2000) + ",application/vnd.kubernetes.protobuf"
    assert prefers_protobuf(long) and _kept.cache_info().currsize == before
    assert negotiate(f"{long},application/json").kind == "object"
    assert _kept.cache_info().currsize == before
