"""Scan, splice and unsplice: one suite over the compiled code (on every instruction set) and its model."""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import proto_model
import pytest
import splice_model
from pods import compact, pod, pod_bytes

from _fastpath import proto
from _fastpath import splice as fast

OLD, NEW, THIRD = (f"{d * 8}-1111-4111-8111-{d * 12}" for d in "abc")
LEVELS = fast.LEVELS[: fast.LEVELS.index(fast.best_level()) + 1]


@pytest.fixture(params=["model", *LEVELS])
def lib(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    if request.param == "model":
        yield splice_model
        return
    fast.set_level(request.param)
    yield fast
    fast.set_level(fast.best_level())


def shown(lib: ModuleType, raw: bytes, *args: Any, **named: Any) -> dict[str, Any]:
    return json.loads(lib.splice(raw, lib.scan(raw), *args, **named))


def owned(*uids: str, **metadata: Any) -> dict[str, Any]:
    refs = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": uid} for uid in uids]
    return {
        "metadata": {"name": "p", "resourceVersion": "1", **metadata, "ownerReferences": refs},
        "spec": {},
    }


def test_scan_reads_what_an_object_says_of_itself(lib: ModuleType) -> None:
    obj = pod(1)
    meta = lib.scan(compact(obj))
    metadata = obj["metadata"]
    assert (meta.namespace, meta.name, meta.uid) == (metadata["namespace"], metadata["name"], metadata["uid"])
    assert meta.version == metadata["resourceVersion"]
    assert [o.uid for o in meta.owners] == [metadata["ownerReferences"][0]["uid"]]
    assert (meta.owners[0].kind, meta.owners[0].api_version) == ("ReplicaSet", "apps/v1")
    assert meta.labels() == metadata["labels"]
    assert meta.annotation("example.dev/config") == metadata["annotations"]["example.dev/config"]
    assert meta.annotation("absent") is None
    assert not meta.deleting


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_scan_takes_any_buffer_and_a_start(lib: ModuleType, buffer: type) -> None:
    raw = pod_bytes(2)
    padded = buffer(b"xx \n" + raw + b',"more":1')
    meta = lib.scan(padded, 2, True)
    assert (meta.start, meta.end) == (4, 4 + len(raw))
    assert meta.name == pod(2)["metadata"]["name"]
    assert json.loads(lib.splice(padded, meta, b"5", None))["metadata"]["resourceVersion"] == "5"


def test_absent_fields_are_empty(lib: ModuleType) -> None:
    meta = lib.scan(b'{"metadata":{}}')
    assert (meta.name, meta.namespace, meta.uid, meta.version, meta.owners) == ("", "", "", "", ())
    assert meta.labels() == {} and meta.annotation("a") is None and not meta.deleting


@pytest.mark.parametrize(
    "metadata",
    [
        '{"resourceVersion":"7","name":"a"}',
        '{"name":"a","labels":{"resourceVersion":"8"},"resourceVersion":"7"}',
        ' { "name" : "a" ,\n\t"resourceVersion" : "7" } ',
        '{"name":"\\u0061","resource\\u0056ersion":"7"}',
        '{"annotations":{"resourceVersion":"{\\"resourceVersion\\":\\"9\\"}"},"name":"a","resourceVersion":"7"}',
        '{"name":"a","resourceVersion":7}',
        '{"managedFields":[{"a":"}]{\\\\\\""}],"name":"a","resourceVersion":"7"}',
    ],
)
def test_only_the_objects_own_version_changes(lib: ModuleType, metadata: str) -> None:
    raw = f'{{"spec":{{"metadata":{{"resourceVersion":"1"}}}},"meta\\u0064ata":{metadata},"z":[1]}}'.encode()
    meta = lib.scan(raw)
    assert (meta.version, meta.name) == ("7", "a")
    want = json.loads(raw)
    want["metadata"]["resourceVersion"] = "123"
    assert json.loads(lib.splice(raw, meta, b"123", None)) == want


@pytest.mark.parametrize(
    "metadata", ["{}", '{"name":"a"}', '{ "name":"a"}', '{"resourceVersion":null}', "{ }"]
)
def test_version_and_annotations_are_inserted_where_absent(lib: ModuleType, metadata: str) -> None:
    raw = f'{{"metadata":{metadata}}}'.encode()
    out = shown(lib, raw, b"55", b"east")
    assert out["metadata"]["resourceVersion"] == "55"
    assert out["metadata"]["annotations"] == {"reclock.dev/cluster": "east"}
    assert shown(lib, raw, b"55", None)["metadata"].get("annotations") is None


@pytest.mark.parametrize(
    "notes",
    [
        "{}",
        "{ }",
        "null",
        '{"a":"b"}',
        '{"reclock.dev/cluster":"west"}',
        '{"x":"y", "reclock.dev/cluster" : null}',
    ],
)
def test_the_clusters_annotation_is_added_or_replaced(lib: ModuleType, notes: str) -> None:
    raw = f'{{"metadata":{{"annotations":{notes},"resourceVersion":"1"}},"spec":{{}}}}'.encode()
    want = {**(json.loads(notes) or {}), "reclock.dev/cluster": 'e/"ä'}
    assert shown(lib, raw, b"2", 'e/"ä'.encode())["metadata"]["annotations"] == want


def test_of_repeated_fields_the_first_is_read_and_changed() -> None:
    raw = b'{"metadata":{"name":"a","resourceVersion":"1","name":"b","resourceVersion":"2"},"metadata":{}}'
    meta = fast.scan(raw)
    assert (meta.name, meta.version) == ("a", "1")
    assert fast.splice(raw, meta, b"77", None) == raw.replace(b'"1"', b'"77"')


def test_all_other_bytes_stay() -> None:
    raw = b'{ "a" : 1.50e+3,"metadata":{"x":12345678901234567890, "resourceVersion" :"1" ,"annotations":{"k":"\\u0041\\/"}}, "z":"\xc3\xa4"} '
    out = fast.splice(raw, fast.scan(raw), b"22", b"e")
    assert out == raw.replace(b'"1"', b'"22"').replace(b'{"k"', b'{"reclock.dev/cluster":"e","k"')[:-1]


def test_owners_uids_are_overwritten_in_references_and_managed_fields(lib: ModuleType) -> None:
    obj = pod(3)
    uid = obj["metadata"]["ownerReferences"][0]["uid"]
    raw = compact(obj)
    out = lib.splice(raw, lib.scan(raw), b"9", b"east", {uid: NEW})
    assert uid.encode() not in out
    assert out.count(NEW.encode()) == 2
    assert lib.scan(out).owners[0].uid == NEW


def test_a_hidden_owner_is_kept_in_an_annotation_and_returns(lib: ModuleType) -> None:
    raw = compact(owned(OLD, THIRD))
    out = lib.splice(raw, lib.scan(raw), b"9", b"east", {OLD: None, THIRD: NEW})
    metadata = json.loads(out)["metadata"]
    assert [o["uid"] for o in metadata["ownerReferences"]] == [NEW]
    assert [o["uid"] for o in json.loads(metadata["annotations"]["reclock.dev/member-owners"])] == [OLD]
    back = json.loads(lib.unsplice(out, b"1", {NEW: THIRD}))
    assert sorted(o["uid"] for o in back["metadata"]["ownerReferences"]) == [OLD, THIRD]
    assert "annotations" not in back["metadata"]


def test_the_last_hidden_owner_takes_the_field_with_it(lib: ModuleType) -> None:
    raw = compact(owned(OLD))
    out = lib.splice(raw, lib.scan(raw), b"9", None, {OLD: None})
    assert "ownerReferences" not in json.loads(out)["metadata"]
    assert json.loads(lib.unsplice(out, b"1")) == json.loads(raw)


def test_host_owners_are_shown_and_their_annotation_is_not(lib: ModuleType) -> None:
    host = json.dumps([{"kind": "Operator", "uid": NEW}, {"kind": "Twice", "uid": OLD}])
    raw = compact(owned(OLD, annotations={"reclock.dev/host-owners": host, "a": "b"}))
    metadata = shown(lib, raw, b"9", None)["metadata"]
    assert [o["uid"] for o in metadata["ownerReferences"]] == [OLD, NEW]
    assert metadata["annotations"] == {"a": "b"}
    out = lib.splice(raw, lib.scan(raw), b"9", b"east")
    back = json.loads(lib.unsplice(out, b"1", {NEW: None}))["metadata"]
    assert [o["uid"] for o in back["ownerReferences"]] == [OLD]
    assert json.loads(back["annotations"]["reclock.dev/host-owners"]) == [{"kind": "Operator", "uid": NEW}]


@pytest.mark.parametrize("value", ['"no json"', '"{}"', "null", "5", '"[1]"', '"[{]"', '"[{\\"a\\":}]"'])
def test_somebody_elses_text_under_our_name_is_left_alone(lib: ModuleType, value: str) -> None:
    raw = f'{{"metadata":{{"annotations":{{"reclock.dev/host-owners":{value},"a":"b"}}}}}}'.encode()
    want = {**json.loads(raw)["metadata"]["annotations"], "reclock.dev/cluster": "east"}
    assert shown(lib, raw, b"9", b"east")["metadata"]["annotations"] == want


def test_uids_of_objects_that_an_event_is_about(lib: ModuleType) -> None:
    raw = compact(
        {
            "involvedObject": {"kind": "Pod", "uid": OLD},
            "metadata": {"name": "e"},
            "regarding": {"uid": OLD},
            "related": {"uid": THIRD},
            "other": {"uid": OLD},
        }
    )
    out = shown(lib, raw, b"9", None, None, object_uids={OLD: NEW})
    assert [out[k]["uid"] for k in ("involvedObject", "regarding", "related", "other")] == [
        NEW,
        NEW,
        THIRD,
        OLD,
    ]
    back = json.loads(lib.unsplice(compact(out), None, None, {NEW: OLD}))
    assert [back[k]["uid"] for k in ("involvedObject", "regarding", "related", "other")] == [
        OLD,
        OLD,
        THIRD,
        OLD,
    ]


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "OTHER"])
@pytest.mark.parametrize("first", ["type", "object"])
def test_frames(lib: ModuleType, kind: str, first: str) -> None:
    obj = pod(5)
    parts = {"type": kind, "object": obj}
    frame = compact({first: parts[first], **parts}) + b"\n"
    got, meta = lib.scan_frame(frame)
    assert (got, meta.name) == (kind, obj["metadata"]["name"])
    assert [o.uid for o in meta.owners] == [obj["metadata"]["ownerReferences"][0]["uid"]]
    out = json.loads(lib.splice(frame, meta, b"77", b"east"))
    assert out["metadata"].pop("annotations").pop("reclock.dev/cluster") == "east"
    assert out["metadata"]["resourceVersion"] == "77" and out["spec"] == obj["spec"]


@pytest.mark.parametrize("deleted", [True, False])
def test_a_frame_in_a_crds_field_order(lib: ModuleType, deleted: bool) -> None:
    obj = pod(6)
    if deleted:
        obj["metadata"]["deletionTimestamp"] = "2026-11-30T12:00:00Z"
    frame = json.dumps({"type": "ADDED", "object": obj}, sort_keys=True).encode()
    frame = b'{"type": "ADDED", "object": ' + json.dumps(obj, sort_keys=True).encode() + b"} \n"
    _, meta = lib.scan_frame(frame)
    assert meta.deleting is deleted and meta.labels() == obj["metadata"]["labels"]
    uid = obj["metadata"]["ownerReferences"][0]["uid"]
    assert uid not in lib.splice(frame, meta, b"1", b"e", {uid: NEW}).decode()


def test_an_error_frame_may_lack_metadata(lib: ModuleType) -> None:
    kind, meta = lib.scan_frame(b'{"type":"ERROR","object":{"kind":"Status","code":410}}')
    assert kind == "ERROR" and meta.version == ""
    assert lib.scan_frame(b'{"type":"ERROR","object":{"kind":"Status","metadata":{}}}')[0] == "ERROR"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"[]",
        b"null",
        b'"x"',
        b"{",
        b"{}",
        b'{"a":1}',
        b'{"metadata"',
        b'{"metadata":',
        b'{"metadata":{',
        b'{"metadata":{"name":"a"',
        b'{"metadata":{"name":"a",}}',
        b'{"metadata":[]}',
        b'{"metadata":null}',
        b'{"metadata":{"name" "a"}}',
        b'{"metadata":{name:"a"}}',
        b'{"metadata":{"a":}}',
        b'{"a":"\\',
    ],
)
def test_no_object_is_an_error(lib: ModuleType, raw: bytes) -> None:
    with pytest.raises(lib.SpliceError):
        lib.scan(raw)
    with pytest.raises(lib.SpliceError):
        lib.scan_frame(b'{"type":"ADDED","object":' + raw + b"}")


def test_every_cut_is_an_error(lib: ModuleType) -> None:
    raw = compact(
        {"kind": "A", "metadata": {"name": "a\\", "labels": {"x": "}"}}, "spec": {"a": [{}, '\\"']}}
    )
    for cut in range(len(raw)):
        with pytest.raises(lib.SpliceError):
            lib.scan(raw[:cut], 0, True)


def test_bad_arguments_are_named() -> None:
    raw = pod_bytes(1)
    meta = fast.scan(raw)
    for version in (b"", b"1a", b'1"', b"-1"):
        with pytest.raises(ValueError, match="version"):
            fast.splice(raw, meta, version, None)
    with pytest.raises(fast.SpliceError):
        fast.splice(raw[:100], meta, b"1", None)
    with pytest.raises(fast.SpliceError):
        fast.splice(raw, meta, b"1", None, None, 50)
    with pytest.raises(fast.SpliceError):
        fast.scan(raw, len(raw) + 1)
    with pytest.raises(ValueError, match="portable"):
        fast.set_level("mmx")


def test_a_meta_used_with_another_buffer_never_leaves_it() -> None:
    raw = pod_bytes(1)
    meta = fast.scan(raw, 0, True)
    for seed in range(2, 40):
        other = pod_bytes(seed)
        try:
            fast.splice(other, meta, b"1", b"e", {OLD: NEW}, len(other))
        except fast.SpliceError:
            continue


# --- the way in ---
def test_unsplice_takes_out_what_splice_put_in(lib: ModuleType) -> None:
    for seed in range(20):
        raw = pod_bytes(seed, annotations=seed % 2 == 0)
        obj = json.loads(raw)
        uid = obj["metadata"]["ownerReferences"][0]["uid"]
        out = lib.splice(raw, lib.scan(raw), b"9", b"east", {uid: NEW})
        assert json.loads(lib.unsplice(out, obj["metadata"]["resourceVersion"].encode(), {NEW: uid})) == obj


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ('{"metadata":{"labels":{"a":"b"}}}', {"metadata": {"labels": {"a": "b"}}}),
        ('{"spec":{"x":1}}', {"spec": {"x": 1}}),
        ('{"metadata":null}', {"metadata": None}),
        ('{"metadata":{"annotations":null}}', {"metadata": {"annotations": None}}),
        ('{"metadata":{"annotations":{}}}', {"metadata": {"annotations": {}}}),
        ('{"metadata":{"annotations":{"reclock.dev/cluster":null}}}', {"metadata": {}}),
        ('{"metadata":{"resourceVersion":"12"}}', {"metadata": {}}),
        ('{"metadata":{"ownerReferences":null}}', {"metadata": {"ownerReferences": None}}),
    ],
)
def test_patches_lose_only_what_is_ours(lib: ModuleType, body: str, want: Any) -> None:
    assert json.loads(lib.unsplice(body.encode(), None)) == want


def test_strategic_patches_name_the_members_owners(lib: ModuleType) -> None:
    body = compact(
        {
            "metadata": {
                "$setElementOrder/ownerReferences": [{"uid": NEW}],
                "ownerReferences": [{"$patch": "delete", "uid": NEW}],
            }
        }
    )
    out = json.loads(lib.unsplice(body, None, {NEW: OLD}))["metadata"]
    assert out["ownerReferences"][0]["uid"] == out["$setElementOrder/ownerReferences"][0]["uid"] == OLD


@pytest.mark.parametrize(
    "body",
    [
        '{"metadata":{"resourceVersion":"1","resourceVersion":"2"}}',
        '{"metadata":{},"metadata":{}}',
        '{"metadata":{"resourceVersion":"1","resource\\u0056ersion":"2"}}',
        '{"metadata":{"ownerReferences":[],"ownerReferences":[]}}',
        '{"metadata":{"annotations":{"reclock.dev/cluster":"a","reclock.dev/cluster":"b"}}}',
    ],
)
def test_repeated_fields_cannot_smuggle_a_version(body: str) -> None:
    with pytest.raises(fast.SpliceError, match="duplicate"):
        fast.unsplice(body.encode(), b"5")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"5", b"{", b'{"a":1}}', b'{"a":1} x', b'{"a" 1}', b'{"metadata":{]}']
)
def test_unsplice_refuses_what_is_no_object(lib: ModuleType, body: bytes) -> None:
    with pytest.raises(lib.SpliceError):
        lib.unsplice(body, None)


def test_numbers_and_order_survive_the_way_in() -> None:
    body = b'{"z":1.50,"metadata":{"b":1e400,"a":12345678901234567890,"resourceVersion":"3"},"a":[ 1 ]}'
    assert fast.unsplice(body, b"4") == body.replace(b'"3"', b'"4"')


def test_an_owner_that_is_named_twice() -> None:
    """Nothing forbids it: both references are mapped, and managedFields once."""
    old, new = "aaaaaaaa-2222-4222-8222-aaaaaaaaaaaa", "bbbbbbbb-2222-4222-8222-bbbbbbbbbbbb"
    obj = {"metadata": {"resourceVersion": "7", "ownerReferences": [{"uid": old}, {"uid": old, "kind": "x"}],
                        "managedFields": [{"fieldsV1": {f'k:{{"uid":"{old}"}}': {}}}]}}  # fmt: skip
    raw = json.dumps(obj).encode()
    shown = json.loads(fast.splice(raw, fast.scan(raw), b"9", None, {old: new}))
    assert json.dumps(shown).count(new) == 3 and old not in json.dumps(shown)


def test_labels_are_each_objects_own_however_many_were_read() -> None:
    for number in range(3000):
        labels = {"app": f"web-{number % 1700}", "long": "x" * (number % 50 * 40)}
        assert fast.scan(compact({"metadata": {"name": "a", "labels": labels}})).labels() == labels


def allocated(call: Any) -> tuple[int, Any]:
    """The most that was allocated at any moment of a call, in bytes; and its result."""
    gc.collect()
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        result = call()
        return tracemalloc.get_traced_memory()[1] - before, result
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_an_event_costs_its_output_and_nothing_beyond(form: str) -> None:
    """A copy, or a tree, on the way would show: it is as large as the object. What is known of one has one size."""
    library: Any = fast if form == "json" else proto
    for filler in (0, 100_000):
        obj = pod(2)
        obj["metadata"]["annotations"]["filler"] = "x" * filler
        body = compact(obj) if form == "json" else proto_model.body_of(obj, "v1", "Pod")
        frame = b'{"type":"MODIFIED","object":%b}' % body if form == "json" else proto_model.event("MODIFIED", "v1", "Pod", body)[4:]
        library.splice(frame, library.scan_frame(frame)[1], b"229894400103936", b"east")  # what is made once is made
        cost, (_, meta) = allocated(lambda frame=frame: library.scan_frame(frame))
        assert cost < 1000, filler
        cost, out = allocated(lambda frame=frame, meta=meta: library.splice(frame, meta, b"229894400103936", b"east"))
        assert len(out) > filler + 2000 and cost <= sys.getsizeof(out) + 500, (filler, cost, len(out))
