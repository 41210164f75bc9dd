"""Random objects and random damage: the compiled code agrees with the model and never leaves its buffer."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import splice_model as model
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pods import pod_bytes
from splice_model import plain

from _fastpath import splice as fast

LEVELS = fast.LEVELS[: fast.LEVELS.index(fast.best_level()) + 1]
UIDS = [f"{d * 8}-2222-4222-8222-{d * 12}" for d in "abcdef"]

texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["{", "}]", '"', "\\", '\\"', "\\" * 63, "\\" * 64 + '"', "resourceVersion", '{"metadata":{', "é€😀"]
    ),
)
keys = st.one_of(
    texts, st.sampled_from(["metadata", "resourceVersion", "annotations", "uid", "type", "object", "items"])
)
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)
references = st.fixed_dictionaries(
    {"kind": texts}, optional={"uid": st.one_of(st.sampled_from(UIDS), st.none()), "name": texts, "x": values}
)


@st.composite
def kept_references(draw: st.DrawFn) -> str:
    return draw(st.one_of(texts, st.lists(references, max_size=3).map(json.dumps)))


annotations = st.dictionaries(
    st.one_of(texts, st.sampled_from(["reclock.dev/cluster", "reclock.dev/clusters"])), texts, max_size=3
).flatmap(
    lambda notes: st.fixed_dictionaries(
        {},
        optional={
            "reclock.dev/host-owners": kept_references(),
            "reclock.dev/member-owners": kept_references(),
        },
    ).map(lambda ours: {**notes, **ours})
)
managed = st.lists(
    st.builds(
        lambda uid, x: {"fieldsV1": {f'k:{{"uid":"{uid}"}}': {".": {}}}, "x": x},
        st.sampled_from(UIDS),
        values,
    ),
    max_size=3,
)
metadata = st.fixed_dictionaries(
    {},
    optional={
        "name": texts,
        "namespace": texts,
        "uid": st.sampled_from(UIDS),
        "labels": st.dictionaries(texts, texts, max_size=3),
        "resourceVersion": st.one_of(st.none(), st.integers(0, 10**12), st.integers(0, 10**12).map(str)),
        "annotations": st.one_of(st.none(), annotations),
        "ownerReferences": st.lists(references, max_size=4),
        "managedFields": managed,
        "deletionTimestamp": st.one_of(st.none(), texts),
        "extra": values,
    },
).flatmap(lambda d: st.permutations(list(d.items())).map(dict))
objects = st.tuples(
    metadata,
    st.dictionaries(keys.filter(lambda key: key != "metadata"), values, max_size=3),
    st.dictionaries(st.sampled_from(["involvedObject", "regarding", "related"]), references, max_size=2),
    st.booleans(),
).map(
    lambda t: (
        {**t[2], **t[1], "metadata": t[0]}
        if t[3]
        else {"metadata": t[0], **t[2], **t[1]}
    )
)
owner_maps = st.dictionaries(st.sampled_from(UIDS), st.one_of(st.none(), st.sampled_from(UIDS)), max_size=4)
written = st.sampled_from([(",", ":"), (" , ", " : "), (",\n", ":\t")])


def text_of(value: Any, separators: tuple[str, str], ascii_only: bool) -> bytes:
    return json.dumps(value, separators=separators, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


def disjoint(owners: dict[str, str | None]) -> dict[str, str | None]:
    """No uid is both replaced and a replacement: in life one side is the host's, the other a member's."""
    return {k: v for k, v in owners.items() if v not in owners}


@settings(max_examples=400, deadline=None)
@given(objects, owner_maps, written, st.booleans(), st.sampled_from([None, b"east", 'a"/ü'.encode()]))
def test_splice_and_scan_agree_with_the_model(
    obj: dict[str, Any],
    owners: dict[str, str | None],
    style: tuple[str, str],
    ascii_only: bool,
    cluster: bytes | None,
) -> None:
    raw = text_of(obj, style, ascii_only)
    owners = disjoint(owners)
    uids = {k: v for k, v in owners.items() if v is not None}
    want = model.scan(raw, 0, True)
    for level in LEVELS:
        fast.set_level(level)
        meta = fast.scan(raw, 0, True)
        for field in ("name", "namespace", "uid", "version", "owners", "deleting", "start", "end"):
            assert getattr(meta, field) == getattr(want, field), field
        assert meta.labels() == want.labels() and meta.annotations() == want.annotations()
        out = fast.splice(raw, meta, b"42", cluster, owners, -1, uids)
        assert plain(out) == plain(model.splice(raw, want, b"42", cluster, owners, -1, uids))
        frame = b'{"type":"MODIFIED","object":' + raw + b"}"
        assert fast.splice(frame, fast.scan_frame(frame)[1], b"42", cluster, owners, -1, uids) == out


@settings(max_examples=300, deadline=None)
@given(objects, owner_maps, written, st.sampled_from([None, b"17"]))
def test_unsplice_agrees_with_the_model(
    obj: dict[str, Any], owners: dict[str, str | None], style: tuple[str, str], version: bytes | None
) -> None:
    raw = text_of(obj, style, True)
    owners = disjoint(owners)
    uids = {k: v for k, v in owners.items() if v is not None}
    assert plain(fast.unsplice(raw, version, owners, uids)) == plain(
        model.unsplice(raw, version, owners, uids)
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.dictionaries(keys, values, max_size=3), max_size=5),
    written,
    st.randoms(use_true_random=False),
)
@example([{"a": "\\" * 64}], (",", ":"), random.Random(1))
def test_lists_in_random_chunks(items: list[Any], style: tuple[str, str], rng: random.Random) -> None:
    parts = [("metadata", {"resourceVersion": "5", "x": items}), ("items", items), ("kind", "L")]
    rng.shuffle(parts)
    raw = text_of(dict(parts), style, True)
    cuts = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randint(0, 12)))
    for level in LEVELS:
        fast.set_level(level)
        scanner = fast.ListScanner()
        got = [i for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) for i in scanner.feed(raw[a:b])]
        assert [json.loads(i) for i in got] == items
        scanner.finish()
        assert scanner.list_version == "5"


def damaged(rng: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] = rng.choice(b'{}[]",:\\ \x00\xff0n')
        elif kind == 1:
            del data[at : at + rng.randint(1, 70)]
        elif kind == 2:
            data[at:at] = rng.choice([b'"', b"\\", b"{", b"}", b"]", b",", b'\\"', b"\\" * 65])
        else:
            del data[at:]
        if not data:
            return b"{"
    return bytes(data)


@pytest.mark.parametrize("level", LEVELS)
def test_damaged_pods_are_refused_or_spliced_but_never_crash(level: str) -> None:
    """Where json accepts the bytes, the answer must be json's (repeated fields aside: there the first wins)."""
    fast.set_level(level)
    rng = random.Random(level)
    agreed = refused = 0
    for i in range(1500):
        raw = damaged(rng, pod_bytes(i % 50))
        try:
            want = model.scan(raw, 0, True)
        except model.SpliceError:
            want = None
        try:
            meta = fast.scan(raw, 0, True)
            out = fast.splice(raw, meta, b"1", b"e", {o.uid: UIDS[0] for o in meta.owners})
            fast.splice(raw, meta, b"1", b"e", {o.uid: None for o in meta.owners})
        except fast.SpliceError:
            refused += 1
            assert want is None
            continue
        frame = b'{"type":"ADDED","object":' + raw + b"}"
        try:
            fast.splice(frame, fast.scan_frame(frame)[1], b"1", b"e", {UIDS[0]: UIDS[1]})
        except fast.SpliceError:
            pass
        if want is not None:
            agreed += 1
            assert meta.end == want.end
            assert json.loads(out)["metadata"]["resourceVersion"] == "1"
    assert agreed > 100 and refused > 500
    fast.set_level(fast.best_level())


@pytest.mark.parametrize("level", LEVELS)
def test_objects_at_every_offset_of_a_block(level: str) -> None:
    """The end of an object is found wherever it and its escapes fall in a 64-byte step."""
    fast.set_level(level)
    rng = random.Random(3)
    for offset in range(130):
        for run in (0, 1, 2, 63, 64, 65):
            inner = json.dumps("\\" * run + '"}' + "x" * rng.randrange(70) + "\\" * rng.randrange(4))
            raw = (" " * offset + f'{{"metadata":{{}},"a":[{inner},{{"b":{inner}}}]}}').encode()
            tail = b'},"]' * 20
            assert fast.scan(raw + tail, 0, True).end == len(raw)
            for cut in (1, 2, 3):
                with pytest.raises(fast.SpliceError):
                    fast.scan(raw[:-cut], 0, True)
    fast.set_level(fast.best_level())
