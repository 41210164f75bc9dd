"""Real objects, mutated: does the compiled splicer agree with its plain-Python twin, in JSON and in protobuf?

`python tests/unit/splice_mutations.py --count 1000000 --seed 1` tries as many as you like (each seed and form by itself);
`test_splice_mutations` a few. What fails is said as `--form FORM --only N`, which plays that one again.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import proto_model
import splice_model
from pods import pod

from _fastpath import proto, splice
from services.common.errors import StatusError

Object = dict[str, Any]
HERE = Path(__file__).parent
LEVELS = splice.LEVELS[: splice.LEVELS.index(splice.best_level()) + 1]
UIDS = [f"{d * 8}-2222-4222-8222-{d * 12}" for d in "abcdef"]
TIME = "2026-11-30T12:00:00Z"
TEXTS = (
    "", "{", "}]", '"', "\\", '\\"', "\\" * 63, "\\" * 64 + '"', "\\u0022", "resourceVersion", '{"metadata":{"resourceVersion":"1"}}',
    "é€😀", "\u2028", "\x7f", "\x00", "a" * 127, "b" * 128, "/", "\t\n\r\b\f", UIDS[0], f'k:{{"uid":"{UIDS[0]}"}}',
)  # fmt: skip
NUMBERS = (0, -1, 2**31, 2**53 + 1, 2**63, -(2**63), 10**40, 1e308, -1.5e-300, 0.1)
KEYS = ("resourceVersion", "metadata", "annotations", "uid", "ownerReferences", "managedFields", "items", "object", 'k"\\')
OURS = (splice.CLUSTER_ANNOTATION, splice.HOST_OWNERS_ANNOTATION, splice.MEMBER_OWNERS_ANNOTATION)
FINE, AGREED, REFUSED, UNREAD = "untouched bytes, agreed", "changed bytes, agreed", "refused", "not the twin's to read"


class Disagreement(AssertionError):
    """What the splicer made of it is not what the twin makes of it."""


@cache
def corpus() -> list[Object]:
    """Objects as real API servers printed them, and pods of their shape."""
    found: list[Object] = []
    for file in sorted((HERE.parent / "conformance" / "recorded").glob("*.json")):
        _collect(json.loads(file.read_text().replace('"TIME"', f'"{TIME}"')), found)
    for file in sorted((HERE / "recorded").glob("objects-*.json")):
        found += json.loads(file.read_text())
    return found + [pod(seed) for seed in range(40)]


def _collect(value: Any, into: list[Object]) -> None:
    if isinstance(value, dict) and isinstance(value.get("metadata"), dict) and "kind" in value and "items" not in value:
        if "name" in value["metadata"]:
            into.append(value)
        return
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _collect(inner, into)


# Changes of what an object says.


def dicts_in(value: Any) -> list[Object]:
    out = [value] if isinstance(value, dict) else []
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        out += dicts_in(inner)
    return out


def shuffled(rng: random.Random, obj: Object) -> Object:
    items = list(obj.items())
    rng.shuffle(items)
    return dict(items)


def references(rng: random.Random) -> list[Object]:
    return [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": rng.choice(TEXTS), "uid": rng.choice(UIDS),
         **({"controller": rng.random() < 0.5} if rng.random() < 0.5 else {})}
        for _ in range(rng.randint(0, 3))
    ]  # fmt: skip


def change_metadata(rng: random.Random, obj: Object) -> Object:
    """Changes that every form can write."""
    metadata = dict(obj["metadata"])
    metadata.pop("selfLink", None)
    for _ in range(rng.randint(1, 4)):
        what = rng.randrange(9)
        if what == 0:
            metadata["resourceVersion"] = str(rng.choice((0, 7, 10**12, 2**63, 10**30)))
        elif what == 1:
            metadata["labels"] = {**(metadata.get("labels") or {}), rng.choice(TEXTS): rng.choice(TEXTS)}
        elif what == 2:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), rng.choice(TEXTS + KEYS): rng.choice(TEXTS)}
        elif what == 3:
            refs = json.dumps(references(rng)) if rng.random() < 0.7 else rng.choice(TEXTS)
            metadata["annotations"] = {**(metadata.get("annotations") or {}), rng.choice(OURS): refs}
        elif what == 4:
            metadata["ownerReferences"] = references(rng)
        elif what == 5:
            fields = {f'k:{{"uid":"{rng.choice(UIDS)}"}}': {".": {}}, rng.choice(KEYS): {}}
            entry = {"manager": rng.choice(TEXTS), "operation": "Update", "time": TIME, "fieldsType": "FieldsV1",
                     "fieldsV1": {"f:metadata": {"f:ownerReferences": fields}}}  # fmt: skip
            metadata["managedFields"] = [*(metadata.get("managedFields") or []), entry]
        elif what == 6:
            metadata[rng.choice(("name", "namespace", "generateName"))] = rng.choice(TEXTS)
        elif what == 7:
            metadata["deletionTimestamp"] = TIME
        elif metadata:
            metadata.pop(rng.choice(list(metadata)))
    return {**obj, "metadata": metadata}


def change_anything(rng: random.Random, obj: Object) -> Object:
    """Changes that only JSON can write: any value at any place."""
    obj = json.loads(json.dumps(obj))
    for _ in range(rng.randint(1, 3)):
        where = rng.choice(dicts_in(obj))
        key = rng.choice([*where, *KEYS])
        if where is obj and key == "metadata":
            continue
        what = rng.randrange(5)
        if what == 0:
            where[key] = rng.choice(TEXTS)
        elif what == 1:
            where[key] = rng.choice(NUMBERS)
        elif what == 2:
            where[key] = rng.choice((None, True, [], {}, [[]], {"": ""}))
        elif what == 3:
            where[key] = {rng.choice(KEYS): rng.choice(TEXTS), "metadata": {"resourceVersion": "1"}}
        else:
            where.pop(key, None)
    return obj


# Changes of the bytes.


def damaged(rng: random.Random, raw: bytes, pieces: tuple[bytes, ...]) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] = rng.choice(pieces)[0]
        elif kind == 1:
            del data[at : at + rng.randint(1, 70)]
        elif kind == 2:
            data[at:at] = rng.choice(pieces)
        else:
            del data[at:]
        if not data:
            return pieces[0]
    return bytes(data)


JSON_PIECES = (b'"', b"\\", b"{", b"}", b"]", b"[", b",", b":", b'\\"', b"\\" * 65, b"\x00", b"\xff", b"0", b"n", b" ")
PROTO_PIECES = (b"\x0a", b"\xff" * 9, b"\x80", b"\x12\x00", b"\x32\x01\x39", b"\x0b", b"\x00", b"\x08\x01", b"\x7f", b"\x0a\x02\x32\x00")


def owner_map(rng: random.Random) -> dict[str, str | None]:
    others: tuple[str | None, ...] = (None, "short", *(one.upper() for one in UIDS))
    return {uid: rng.choice(others) for uid in rng.sample(UIDS, rng.randint(0, 3))}


# One mutation.


def has_repeated_keys(raw: bytes) -> bool:
    repeated = False

    def pairs(found: list[tuple[str, Any]]) -> Object:
        nonlocal repeated
        repeated = repeated or len({key for key, _ in found}) != len(found)
        return dict(found)

    json.loads(raw, object_pairs_hook=pairs)
    return repeated


def equal(what: str, got: Any, want: Any) -> None:
    if got != want:
        raise Disagreement(f"{what}: {got!r}, the twin says {want!r}")


def said(value: Any) -> Any:
    """What stands where a string belongs is shown as the JSON that it is, spaces and all."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def same_meta(meta: Any, want: Any, *more: str) -> None:
    for field in ("name", "namespace", "uid", "version", "owners", "deleting", *more):
        equal(field, said(getattr(meta, field)), said(getattr(want, field)))
    equal("labels", meta.labels(), want.labels())
    equal("annotations", meta.annotations(), want.annotations())


def try_json(rng: random.Random) -> str:
    obj = rng.choice(corpus())
    obj = change_metadata(rng, obj) if rng.random() < 0.7 else change_anything(rng, obj)
    obj["metadata"] = shuffled(rng, obj["metadata"])
    style = rng.choice(((",", ":"), (", ", ": "), (" ,\n", "\t: ")))
    raw = json.dumps(shuffled(rng, obj), separators=style, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    whole = rng.random() < 0.6
    if not whole:
        raw = damaged(rng, raw, JSON_PIECES)
    splice.set_level(rng.choice(LEVELS))
    owners, cluster = owner_map(rng), rng.choice((None, b"east", 'a"/ü'.encode()))
    uids = {old: new for old, new in owners.items() if new is not None}
    want = _twin(lambda: splice_model.scan(raw, 0, True))
    try:
        meta = splice.scan(raw, 0, True)
        out = splice.splice(raw, meta, b"42", cluster, owners, -1, uids)
    except splice.SpliceError as error:
        if want is not None:
            raise Disagreement(f"refused ({error}), the twin reads it") from error
        return REFUSED
    if want is None or (not whole and has_repeated_keys(raw[: want.end])):
        return UNREAD
    same_meta(meta, want, "end")
    equal("spliced", splice_model.plain(out), splice_model.plain(splice_model.splice(raw, want, b"42", cluster, owners, -1, uids)))
    frame = b'{"type":"MODIFIED","object":' + raw + b"}"
    if meta.end == len(raw):
        equal("frame", splice.splice(frame, splice.scan_frame(frame)[1], b"42", cluster, owners, -1, uids), out)
        back = splice_model.unsplice(raw, b"7", owners, uids)
        equal("unspliced", splice_model.plain(splice.unsplice(raw, b"7", owners, uids)), splice_model.plain(back))
    return FINE if whole else AGREED


def _twin(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (ValueError, StatusError, RecursionError):
        return None


def records(raw: bytes) -> list[tuple[int, int, bytes]]:
    """(number, wire, value) of each field of a message; of a varint the value is its bytes."""
    at, out = 0, []
    while at < len(raw):
        tag, at = _number(raw, at)
        begin = at
        if tag & 7 == 2:
            size, begin = _number(raw, at)
            at = begin + size
        elif tag & 7 == 0:
            _, at = _number(raw, at)
        else:
            at += 8 if tag & 7 == 1 else 4
        out.append((tag >> 3, tag & 7, raw[begin:at]))
    return out


def _number(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (raw[at] & 0x7F) << shift
        shift += 7
        at += 1
        if raw[at - 1] < 0x80:
            return value, at


def long_varint(value: int) -> bytes:
    """A byte more than it needs, as protobuf allows."""
    short = proto_model.varint(value)
    return short[:-1] + bytes([short[-1] | 0x80, 0])


def written(fields: list[tuple[int, int, bytes]], rng: random.Random | None = None) -> bytes:
    """The message; with dice, here and there with more bytes than it takes."""
    out = b""
    for number, wire, value in fields:
        tag = long_varint if rng is not None and rng.random() < 0.1 else proto_model.varint
        size = long_varint if rng is not None and rng.random() < 0.1 else proto_model.varint
        out += tag(number << 3 | wire) + (size(len(value)) if wire == 2 else b"") + value
    return out


def rewired(rng: random.Random, body: bytes) -> bytes:
    """The same fields as no generator writes them: valid protobuf mostly, and not always of one meaning."""
    outer = records(body)
    inner = records(outer[0][2])
    for _ in range(rng.randint(1, 3)):
        what = rng.randrange(9)
        if what == 0:
            rng.shuffle(inner)
        elif what == 1 and inner:
            inner.insert(rng.randrange(len(inner) + 1), rng.choice(inner))
        elif what == 2:
            inner = [(n, w, written(records(v)[::-1]) if n in (11, 12) else v) for n, w, v in inner]
        elif what == 3:
            inner = [(n, w, written(records(v)[: rng.randint(0, 2)]) if n in (11, 12) else v) for n, w, v in inner]
        elif what == 4:
            inner = [(n, w, written(records(v) * 2) if n in (11, 12) and rng.random() < 0.5 else v) for n, w, v in inner]
        elif what == 5:
            cut = rng.randint(0, len(inner))
            outer = [(1, 2, written(inner[:cut])), *outer[1:]]
            outer.insert(rng.randint(1, len(outer)), (1, 2, written(inner[cut:])))
            return written(outer)
        elif what == 6:
            inner.append((rng.choice((1, 3, 5, 6, 9, 11, 12, 13, 17)), 0, b"\x01"))
        elif what == 7:
            inner = [(n, w, written(records(v), rng) if n in (11, 12, 13) else v) for n, w, v in inner]
        else:
            outer = outer[1:] + outer[:1]
            outer[-1] = (1, 2, written(inner))
            return written(outer)
    return written([(1, 2, written(inner, rng if rng.random() < 0.3 else None)), *outer[1:]], rng if rng.random() < 0.1 else None)


@cache
def typed() -> list[Object]:
    """Objects of types that have protobuf."""
    out = []
    for obj in corpus():
        try:
            proto_model.body_of(obj, obj.get("apiVersion", "v1"), obj.get("kind", "Pod"))
        except (KeyError, ValueError, TypeError):
            continue
        out.append(obj)
    return out


def try_protobuf(rng: random.Random) -> str:
    source = rng.choice(typed())
    api_version, kind = source.get("apiVersion", "v1"), source.get("kind", "Pod")
    body = proto_model.body_of(change_metadata(rng, source), api_version, kind)
    how = rng.randrange(3)
    if how == 1:
        body = rewired(rng, body)
    elif how == 2:
        body = damaged(rng, body, PROTO_PIECES)
    owners, cluster = owner_map(rng), rng.choice((None, b"east", 'a"/ü'.encode()))
    obj = _twin(lambda: proto_model.decoded(body, api_version, kind))
    try:
        meta = proto.scan(body)
        out = proto.splice(body, meta, b"42", cluster, owners)
        told = meta.name, meta.namespace, meta.uid, meta.owners, meta.labels(), meta.annotations()
    except proto.SpliceError as error:
        if how == 0:
            raise Disagreement(f"refused ({error}), as Kubernetes writes it") from error
        return REFUSED
    equal("version", proto.scan(out).version, "42")
    frame = proto_model.event("MODIFIED", api_version, kind, body)[4:]
    equal("frame", proto.splice(frame, proto.scan_frame(frame)[1], b"42", cluster, owners), out)
    if obj is None:
        return UNREAD
    obj.setdefault("metadata", {})
    raw = json.dumps(obj).encode()
    want = splice_model.scan(raw)
    same_meta(meta, want)
    equal("told", told, (want.name, want.namespace, want.uid, want.owners, want.labels(), want.annotations()))
    shown = proto_model.decoded(out, api_version, kind)
    equal("spliced", proto_model.plain(shown), proto_model.plain(proto_model.splice(obj, b"42", cluster, owners)))
    return FINE if how == 0 else AGREED


FORMS = {"json": try_json, "protobuf": try_protobuf}


def once(form: str, seed: int, number: int) -> str:
    """One mutation; what came of it. Disagreement."""
    try:
        return FORMS[form](random.Random(f"{form}/{seed}/{number}"))
    except Disagreement as error:
        raise Disagreement(f"--form {form} --seed {seed} --only {number}: {error}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--begin", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", choices=sorted(FORMS))
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    for form in [given.form] if given.form else sorted(FORMS):
        if given.only is not None:
            print(once(form, given.seed, given.only))
            continue
        begin, came, failed = time.perf_counter(), Counter[str](), 0
        for number in range(given.begin, given.begin + given.count):
            try:
                came[once(form, given.seed, number)] += 1
            except Disagreement as error:
                failed += 1
                print(str(error)[:1500], flush=True)
                if failed >= 20:
                    break
        said = ", ".join(f"{count} {what}" for what, count in sorted(came.items()))
        print(f"{form}: {said}; {failed} disagreements, {time.perf_counter() - begin:.0f} s", flush=True)
        if failed:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
