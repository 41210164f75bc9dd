"""Mutated real objects through both splicers, against their plain Python twins.

Each round takes a pod as an apiserver writes it, changes its contents (escapes, unicode, huge numbers, owners, versions
nested in annotations and managedFields, other orders), compares scan and splice with the twins in JSON (every
instruction set) and in protobuf, then damages and cuts the bytes: those must be refused or agree, and never crash.
A failure prints the seed that replays it; `--count` is in objects, of which a round (a seed) makes 2 + 2 * DAMAGES.

    python -m benchmarks.fuzz_splice --count 1000000 [--seed N] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))

import proto_model
import splice_model
import test_splice_fuzz as json_tests
import test_splice_proto as proto_tests
from pods import compact, pod

from _fastpath import proto, splice

TEXTS = [
    "", "resourceVersion", '"resourceVersion":"7"', "\\", '\\"', "\\" * 63, "\\" * 64 + '"', "{", "}]", "é€😀", "\u2028", "\x00\x1f",
    "a" * 127, "b" * 128, "c" * 16384, "\ud7ff", "</script>&", 'k:{"uid":"x"}', '{"metadata":{"resourceVersion":"1"}}',
]  # fmt: skip
NUMBERS = [0, -1, 2**53, 2**63 - 1, 2**64, 10**40, 1e308, -1e-308, 0.1, True, None]
UIDS = json_tests.UIDS
DAMAGES = 24  # damaged copies of each changed object, in each encoding


def reference(rng: random.Random) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": rng.choice(["ReplicaSet", *TEXTS[:6]]), "name": rng.choice(["web", *TEXTS]),
            "uid": rng.choice(UIDS), "controller": rng.random() < 0.5}  # fmt: skip


def changed(rng: random.Random, obj: dict[str, Any], *, wild: bool) -> dict[str, Any]:
    """`wild`: also what only JSON can say."""
    metadata = obj["metadata"]
    notes = metadata.setdefault("annotations", {})

    def versions() -> None:
        notes[rng.choice(["resourceVersion", "x", "reclock.dev/cluster", "reclock.dev/clusters"])] = rng.choice(TEXTS)
        metadata["managedFields"].append({
            "manager": rng.choice(TEXTS), "operation": "Update", "fieldsType": "FieldsV1",
            "fieldsV1": {"resourceVersion": rng.choice(TEXTS), f'k:{{"uid":"{rng.choice(UIDS)}"}}': {".": {}}},
        })  # fmt: skip

    def owners() -> None:
        metadata["ownerReferences"] = [reference(rng) for _ in range(rng.randint(0, 4))]
        for key in (splice.HOST_OWNERS_ANNOTATION, splice.MEMBER_OWNERS_ANNOTATION):
            if rng.random() < 0.3:
                kept = [reference(rng) for _ in range(rng.randint(0, 3))]
                notes[key] = rng.choice([json.dumps(kept), rng.choice(TEXTS), "[]", "[1]", "null"])

    def texts() -> None:
        metadata[rng.choice(["name", "namespace", "generateName"])] = rng.choice(TEXTS)
        metadata["labels"][rng.choice(TEXTS)] = rng.choice(TEXTS)

    def absent() -> None:
        metadata.pop(rng.choice(list(metadata)))

    def numbers() -> None:
        obj["spec"][rng.choice(TEXTS)] = rng.choice(NUMBERS)
        metadata["extra"] = {"resourceVersion": rng.choice(NUMBERS), "uid": [rng.choice(NUMBERS)]}

    def order() -> None:
        items = list(metadata.items())
        rng.shuffle(items)
        obj["metadata"] = dict(items)

    steps: list[Callable[[], None]] = [versions, owners, texts]
    for step in rng.sample([*steps, numbers, order] if wild else steps, rng.randint(1, 3)):
        step()
    if rng.random() < 0.2:
        absent()
    return obj


def in_json(rng: random.Random, seed: int, seen: Counter[str]) -> None:
    obj = changed(rng, pod(seed % 200), wild=True)
    raw = compact(obj) if rng.random() < 0.5 else json_tests.text_of(obj, (" , ", " : "), rng.random() < 0.5)
    owners = json_tests.disjoint({uid: rng.choice([None, *UIDS]) for uid in rng.sample(UIDS, 3)})
    want = splice_model.scan(raw, 0, True)
    shown = json_tests.plain(splice_model.splice(raw, want, b"42", b"east", owners, -1, None))
    for level in json_tests.LEVELS:
        splice.set_level(level)
        meta = splice.scan(raw, 0, True)
        assert (meta.name, meta.uid, meta.version, meta.owners, meta.end) == (
            want.name, want.uid, want.version, want.owners, want.end,
        )  # fmt: skip
        assert json_tests.plain(splice.splice(raw, meta, b"42", b"east", owners)) == shown
    for _ in range(DAMAGES):
        splice.set_level(rng.choice(json_tests.LEVELS))
        damaged_json(rng, raw, seen)
    seen["objects"] += 1 + DAMAGES


def damaged_json(rng: random.Random, raw: bytes, seen: Counter[str]) -> None:
    if rng.random() < 0.2:
        try:
            splice.scan(raw[: rng.randrange(len(raw))], 0, True)
        except splice.SpliceError:
            seen["cut JSON refused"] += 1
            return
        raise AssertionError("cut short, and taken")
    broken = json_tests.damaged(rng, raw)
    try:
        model = splice_model.scan(broken, 0, True)
    except splice_model.SpliceError:
        model = None
    try:
        meta = splice.scan(broken, 0, True)
        out = splice.splice(broken, meta, b"1", b"e", dict.fromkeys((o.uid for o in meta.owners), UIDS[0]))
    except splice.SpliceError:
        seen["damaged JSON refused"] += 1
        assert model is None, "JSON, and refused"
        return
    if model is None:
        seen["damaged JSON passed"] += 1
        return
    shown = json.loads(out, object_pairs_hook=lambda pairs: dict(reversed(pairs)))  # of repeated fields the first counts
    assert meta.end == model.end and shown["metadata"]["resourceVersion"] == "1"
    seen["damaged JSON agreed"] += 1


def in_protobuf(rng: random.Random, seed: int, seen: Counter[str]) -> None:
    obj = changed(rng, pod(seed % 200), wild=False)
    body = proto_model.body_of(obj)
    owners = {uid: rng.choice([None, "short", *(u.upper() for u in UIDS)]) for uid in rng.sample(UIDS, 3)}
    proto_tests.check(body, owners, b"east", (b"", b""))
    for _ in range(DAMAGES):
        damaged_protobuf(rng, body, seen)
    seen["objects"] += 1 + DAMAGES


def damaged_protobuf(rng: random.Random, body: bytes, seen: Counter[str]) -> None:
    broken = proto_tests.damaged(rng, body if rng.random() < 0.5 else body[: rng.randrange(1, len(body))])
    try:
        meta = proto.scan(broken)
        out = proto.splice(broken, meta, b"1", b"e", dict.fromkeys(o.uid for o in meta.owners))
    except splice.SpliceError:
        seen["damaged protobuf refused"] += 1
        return
    again = proto.scan(out)
    assert again.version == "1"
    try:
        assert again.annotations()["reclock.dev/cluster"] == "e"
    except splice.SpliceError:  # the damage lies in another annotation, which nobody has read
        seen["damaged protobuf passed, with its damage"] += 1
        return
    seen["damaged protobuf passed"] += 1


def work(first: int, count: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        for one in (in_json, in_protobuf):
            try:
                one(random.Random(seed), seed, seen)
            except Exception as error:
                raise RuntimeError(f"{one.__name__} fails: --seed {seed} --count 1") from error
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    began, step = time.monotonic(), 100
    end = asked.seed + -(-asked.count // (2 + 2 * DAMAGES))
    parts = [(at, min(step, end - at)) for at in range(asked.seed, end, step)]
    total: Counter[str] = Counter()
    with multiprocessing.Pool(asked.jobs) as pool:
        for found in pool.starmap(work, parts, chunksize=1) if asked.jobs > 1 else (work(*part) for part in parts):
            total += found
    rate = total["objects"] / (time.monotonic() - began)
    print(f"{dict(total)}: no disagreement ({rate:.0f} objects/s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
