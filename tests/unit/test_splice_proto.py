"""Protobuf passes through as bytes: agreement with the twin, every cut of a stream, and damage that is refused."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import proto_model as model
import pytest
import splice_model
from hypothesis import given, settings
from hypothesis import strategies as st
from pods import pod
from proto_model import plain

from _fastpath import proto
from _fastpath.splice import HOST_OWNERS_ANNOTATION, MEMBER_OWNERS_ANNOTATION, SpliceError

UIDS = [f"{d * 8}-2222-4222-8222-{d * 12}" for d in "abcdef"]
texts = st.one_of(st.text(max_size=20), st.sampled_from(["resourceVersion", '"', "\\", "é€😀", "x" * 200, UIDS[0]]))
references = st.fixed_dictionaries(
    {"kind": texts, "name": texts, "apiVersion": texts},
    optional={"uid": st.sampled_from(UIDS), "controller": st.booleans(), "blockOwnerDeletion": st.booleans()},
)
kept = st.one_of(texts, st.lists(references, max_size=3).map(json.dumps))
annotations = st.tuples(
    st.dictionaries(st.one_of(texts, st.sampled_from(["reclock.dev/cluster", "reclock.dev/clusters"])), texts, max_size=3),
    st.fixed_dictionaries({}, optional={HOST_OWNERS_ANNOTATION: kept, MEMBER_OWNERS_ANNOTATION: kept}),
).map(lambda pair: {**pair[0], **pair[1]})
managed = st.builds(
    lambda uid, name: {
        "manager": name, "operation": "Update", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:ownerReferences": {f'k:{{"uid":"{uid}"}}': {".": {}}}}, "resourceVersion": name},
    },
    st.sampled_from(UIDS), texts,
)  # fmt: skip
metadata = st.fixed_dictionaries(
    {},
    optional={
        "name": texts, "generateName": texts, "namespace": texts, "uid": st.sampled_from(UIDS),
        "resourceVersion": st.integers(0, 10**12).map(str), "generation": st.integers(1, 2**40),
        "creationTimestamp": st.just("2026-11-30T17:58:48Z"), "deletionTimestamp": st.just("2026-11-30T17:58:49Z"),
        "labels": st.dictionaries(texts, texts, min_size=1, max_size=3), "annotations": annotations,
        "ownerReferences": st.lists(references, max_size=4), "finalizers": st.lists(texts, max_size=2),
        "managedFields": st.lists(managed, max_size=3),
    },
)  # fmt: skip
owner_maps = st.dictionaries(
    st.sampled_from(UIDS), st.one_of(st.none(), st.sampled_from([u.upper() for u in UIDS]), st.just("short")), max_size=4
)


def check(body: bytes, owners: dict[str, str | None], cluster: bytes | None, surround: tuple[bytes, bytes]) -> None:
    obj = {"metadata": {}, **model.decoded(body)}
    want = splice_model.scan(json.dumps(obj).encode())
    buf = surround[0] + body
    meta = proto.scan(buf, len(surround[0]))
    for field in ("name", "namespace", "uid", "version", "owners", "deleting"):
        assert getattr(meta, field) == getattr(want, field), field
    assert meta.labels() == want.labels() and meta.annotations() == want.annotations()
    assert (meta.start, meta.end) == (len(surround[0]), len(buf))
    out = proto.splice(buf, meta, b"42", cluster, owners)
    assert plain(model.decoded(out)) == plain(model.splice(obj, b"42", cluster, owners))
    frame = model.event("MODIFIED", "v1", "Pod", body)[4:]
    type_, told = proto.scan_frame(frame)
    assert type_ == "MODIFIED" and proto.splice(frame, told, b"42", cluster, owners) == out


@settings(max_examples=300, deadline=None)
@given(metadata, owner_maps, st.sampled_from([None, b"east", "a\"/ü".encode()]), st.binary(max_size=5))
def test_scan_and_splice_agree_with_the_model(
    meta: dict[str, Any], owners: dict[str, str | None], cluster: bytes | None, before: bytes
) -> None:
    obj = {"metadata": meta, "spec": {"nodeName": "n0"}, "status": {"phase": "Running"}}
    check(model.body_of(obj), owners, cluster, (before, b""))


@pytest.mark.parametrize("size", [127, 128, 16383, 16384, 2097151])
def test_lengths_that_grow_by_a_byte(size: int) -> None:
    """Around every size at which a length prefix needs one more byte, of the metadata and of the object."""
    for more in range(-60, 10, 7):
        obj = {"metadata": {"name": "x", "labels": {"l": "y" * max(size + more, 0)}, "resourceVersion": "7"}}
        check(model.body_of(obj), {}, b"east", (b"", b""))


def test_all_but_the_changed_fields_keep_their_bytes() -> None:
    for seed in range(50):
        obj = pod(seed)
        body = model.body_of(obj) + model.record(99, b"a field of the future") + model.varint(98 << 3) + b"\x05"
        out = proto.splice(body, proto.scan(body), b"2041273645056", b"east")
        old = model.record(6, obj["metadata"]["resourceVersion"].encode())
        new = model.record(6, b"2041273645056")
        note = model.record(12, model.record(1, b"reclock.dev/cluster") + model.record(2, b"east"))
        start = proto.scan(body)
        inner = body[body.index(old) :]
        assert out.count(note) == 1 and out.count(new) == 1 and out.endswith(b"\x90\x06\x05")
        assert len(out) - len(body) - len(note) - len(new) + len(old) in (0, 1), "a length prefix may grow"
        assert out.replace(note, b"").replace(new, old)[-len(inner) :] == inner and start.start == 0


def test_events_and_what_they_are_about() -> None:
    event = {"metadata": {"name": "e", "uid": UIDS[3]}, "involvedObject": {"kind": "Pod", "uid": UIDS[0]},
             "related": {"uid": UIDS[1]}, "message": UIDS[0]}  # fmt: skip
    for new in (UIDS[2], "short", "x" * 300):
        body = model.body_of(event, "v1", "Event")
        out = proto.splice(body, proto.scan(body), b"1", None, None, -1, {UIDS[0]: new}, (2, 13))
        shown = model.decoded(out, "v1", "Event")
        assert shown["involvedObject"]["uid"] == new and shown["related"]["uid"] == UIDS[1]
        assert shown["message"] == UIDS[0]
    regarding = {"metadata": {"name": "e"}, "regarding": {"uid": UIDS[0]}, "eventTime": None}
    body = model.body_of(regarding, "events.k8s.io/v1", "Event")
    out = proto.splice(body, proto.scan(body), b"1", None, None, -1, {UIDS[0]: UIDS[4]}, (8, 9))
    assert model.decoded(out, "events.k8s.io/v1", "Event")["regarding"]["uid"] == UIDS[4]


def test_labels_and_versions_put() -> None:
    body = model.body_of(pod(1))
    obj = model.decoded(body)
    assert model.decoded(proto.put_labels(body, {"b": "2", "a": "1"}))["metadata"] == {**obj["metadata"], "labels": {"a": "1", "b": "2"}}
    bare = model.decoded(proto.without_version(body))["metadata"]
    assert bare == {k: v for k, v in obj["metadata"].items() if k != "resourceVersion"}


def test_envelopes_are_the_models() -> None:
    head = model.record(1, b"v1") + model.record(2, b"Pod")
    for size in (0, 1, 100, 127, 128, 200, 16200, 16300, 16384, 3_000_000):
        body = b"\x0a\x00" + b"\x12" * size
        assert proto.envelope(head, body) == model.envelope("v1", "Pod", body)
        assert proto.event(b"ADDED", head, body) == model.event("ADDED", "v1", "Pod", body)
        assert proto.unwrap(proto.envelope(head, body)) == ("v1", "Pod", len(proto.envelope_head(head, len(body))), len(proto.envelope(head, body)) - 4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=6), st.randoms(use_true_random=False))
def test_lists_and_frames_in_random_chunks(items: list[bytes], rng: random.Random) -> None:
    data = model.list_of("v1", "PodList", {"resourceVersion": "5", "continue": "c", "remainingItemCount": 300}, items)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randint(0, 12)))
    scanner = proto.ListScanner()
    got = [i for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) for i in scanner.feed(data[a:b])]
    scanner.finish()
    assert got == items and scanner.count == len(items) and scanner.head == b""
    assert (scanner.list_version, scanner.continue_token, scanner.remaining) == ("5", "c", 300)
    frames = [item or b"x" for item in items]
    data = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randint(0, 12)))
    splitter = proto.FrameSplitter()
    assert [f for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) for f in splitter.feed(data[a:b])] == frames
    assert splitter.pending == 0


def test_what_is_no_list() -> None:
    good = model.list_of("v1", "PodList", {"resourceVersion": "5"}, [model.body_of(pod(1))])
    for bad in (b"{}  ", b"k8s\x01" + good[4:], model.envelope("v1", "Status", b""), good + b"\x07", b"<html></html>",
                good + model.record(2, b"")):  # fmt: skip
        scanner = proto.ListScanner()
        with pytest.raises(SpliceError):
            scanner.feed(bad)
        with pytest.raises(SpliceError, match="broken before"):
            scanner.feed(b"x")
    for cut in (0, 3, 4, 20, 60, len(good) // 2, len(good) - 5):
        scanner = proto.ListScanner()
        scanner.feed(good[:cut])
        with pytest.raises(SpliceError):
            scanner.finish()
    with pytest.raises(SpliceError, match="longer than 100"):
        proto.ListScanner(max_item=100).feed(good)
    with pytest.raises(SpliceError, match="longer than 100"):
        proto.FrameSplitter(100).feed(struct.pack(">I", 101))


def damaged(rng: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] = rng.choice(b"\x00\x01\x0a\x12\x7f\x80\xff")
        elif kind == 1:
            del data[at : at + rng.randint(1, 70)]
        elif kind == 2:
            data[at:at] = rng.choice([b"\x0a", b"\xff" * 9, b"\x80", b"\x12\x00", b"\x32\x01\x39", b"\x0b", b"\x00"])
        else:
            del data[at:]
        if not data:
            return b"\x0a"
    return bytes(data)


def test_damage_is_refused_or_spliced_but_never_crashes() -> None:
    """What is spliced out of damaged bytes is what the twin makes of them, wherever it can read them at all."""
    rng = random.Random(1)
    agreed = refused = 0
    bodies = [model.body_of(pod(i)) for i in range(30)]
    for i in range(4000):
        raw = bodies[i % 30]
        cut = damaged(rng, raw[: rng.choice([60, 400, len(raw)])])
        try:
            meta = proto.scan(cut)
            owners: dict[str, str | None] = {o.uid: UIDS[i % 3] for o in meta.owners}
            out = proto.splice(cut, meta, b"1", b"e", owners)
            proto.splice(cut, meta, b"1", b"e", dict.fromkeys(owners))
            meta.labels(), meta.annotations(), meta.name, meta.namespace, meta.uid
        except SpliceError:
            refused += 1
            continue
        assert proto.scan(out).version == "1" and proto.scan(out).annotations()["reclock.dev/cluster"] == "e"
        agreed += 1
        frame = damaged(rng, model.event("ADDED", "v1", "Pod", raw)[4:])
        try:
            type_, told = proto.scan_frame(frame)
            if type_ != "ERROR":
                proto.splice(frame, told, b"1", b"e", owners)
        except SpliceError:
            pass
        try:
            scanner = proto.ListScanner()
            for item in scanner.feed(damaged(rng, model.list_of("v1", "PodList", {}, [raw, raw]))):
                proto.scan(item)
        except SpliceError:
            pass
    assert agreed > 100 and refused > 300


def test_a_meta_of_another_buffer_is_refused() -> None:
    one, other = model.body_of(pod(1)), model.body_of(pod(2))
    with pytest.raises(SpliceError):
        proto.splice(other, proto.scan(one), b"1", b"e")
    with pytest.raises(ValueError, match="decimal"):
        proto.splice(one, proto.scan(one), b"x", b"e")


def test_an_owner_that_is_named_twice() -> None:
    owners = [{"kind": "a", "uid": UIDS[0]}, {"kind": "b", "uid": UIDS[0]}]
    fields = [{"manager": "m", "fieldsV1": {f'k:{{"uid":"{UIDS[0]}"}}': {}}}]
    obj = {"metadata": {"name": "x", "ownerReferences": owners, "managedFields": fields}}
    for new in (UIDS[1], "short", None):
        check(model.body_of(obj), {UIDS[0]: new}, b"east", (b"", b""))
