"""Splicer: GB/s of input, called from Python once per object, against json's round trip in the same run.

Method: 4,000 distinct pods (some 22 MB, more than the caches hold) with managedFields and annotations;
an event is scan_frame + splice with the cluster's annotation, a list is fed in 64 KiB chunks and every
item scanned and spliced. Median of 7 passes, CPU time. The goals are ratios and rates of docs' budget.

    python benchmarks/bench_splice.py [--short]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))

import msgspec
import proto_model
from pods import pod, pod_bytes
from report import line, median_of, note

from _fastpath import proto
from _fastpath import splice as fast


def events(frames: list[bytes], cluster: bytes | None) -> None:
    scan_frame, splice = fast.scan_frame, fast.splice
    for frame in frames:
        _, meta = scan_frame(frame)
        splice(frame, meta, b"2041273645056", cluster)


def items(raws: list[bytes], cluster: bytes | None) -> None:
    """Objects whose end is not known: scanned to their end, then spliced."""
    scan, splice = fast.scan, fast.splice
    for raw in raws:
        splice(raw, scan(raw, 0, True), b"2041273645056", cluster)


def stream(chunks: list[bytes]) -> None:
    scan, splice = fast.scan, fast.splice
    scanner = fast.ListScanner()
    for chunk in chunks:
        for item in scanner.feed(chunk):
            splice(item, scan(item), b"2041273645056", b"east", None, len(item))
    scanner.finish()


def proto_events(frames: list[bytes]) -> None:
    scan_frame, splice = proto.scan_frame, proto.splice
    for frame in frames:
        _, meta = scan_frame(frame)
        splice(frame, meta, b"2041273645056", b"east")


def proto_stream(chunks: list[bytes]) -> None:
    scan, splice = proto.scan, proto.splice
    scanner = proto.ListScanner()
    for chunk in chunks:
        for item in scanner.feed(chunk):
            splice(item, scan(item), b"2041273645056", b"east")
    scanner.finish()


def json_events(frames: list[bytes]) -> None:
    for frame in frames:
        event = json.loads(frame)
        event["object"]["metadata"]["resourceVersion"] = "2041273645056"
        json.dumps(event["object"])


def msgspec_events(frames: list[bytes]) -> None:
    for frame in frames:
        event = msgspec.json.decode(frame)
        event["object"]["metadata"]["resourceVersion"] = "2041273645056"
        msgspec.json.encode(event["object"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true", help="400 pods")
    count = 400 if parser.parse_args().short else 4000
    raws = [pod_bytes(seed) for seed in range(count)]
    frames = [b'{"type":"MODIFIED","object":' + raw + b"}\n" for raw in raws]
    bare = [
        b'{"type":"MODIFIED","object":' + pod_bytes(seed, annotations=False) + b"}\n" for seed in range(count)
    ]
    whole = b'{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[' + b",".join(raws) + b"]}\n"
    chunks = [whole[i : i + 65536] for i in range(0, len(whole), 65536)]
    total = sum(map(len, raws)) / 1e9
    best = fast.best_level()
    print(f"{count} pods, mean {total * 1e9 / count:.0f} bytes, {best}")

    plain = median_of(lambda: events(frames, None))
    line("splice event", total / plain, "GB/s", 8, at_least=True)
    few = frames[:48] * (count // 48)
    note(
        "splice event, 48 pods again and again",
        sum(map(len, few)) / 1e9 / median_of(lambda: events(few, None)),
        "GB/s",
    )
    marked = median_of(lambda: events(frames, b"east"))
    line("splice event with annotation, against without", marked / plain, "x time", 1.8, at_least=False)
    note("splice event with annotation", total / marked, "GB/s")
    unmarked = median_of(lambda: events(bare, b"east"))
    note("splice event without annotations map", sum(map(len, bare)) / 1e9 / unmarked, "GB/s")
    for level in fast.LEVELS[: fast.LEVELS.index(best) + 1]:
        fast.set_level(level)
        goal = {"portable": 1.0, "sse2": 2.4, "avx2": 4.0}[level]
        line(
            f"splice list item, {level}",
            total / median_of(lambda: items(raws, None)),
            "GB/s",
            goal,
            at_least=True,
        )
    fast.set_level(best)
    note("list in 64 KiB chunks, cut, scanned, annotated", total / median_of(lambda: stream(chunks)), "GB/s")
    some = frames[: count // 8]
    share = total * len(some) / count
    decoded = median_of(lambda: json_events(some), rounds=3)
    note("splice event against json.loads+dumps", (total / plain) / (share / decoded), "x")
    decoded = median_of(lambda: msgspec_events(some), rounds=3)
    line(
        "splice event against msgspec's round trip",
        (total / plain) / (share / decoded),
        "x",
        25,
        at_least=True,
    )
    in_protobuf(count, plain / count)
    return 0


def in_protobuf(count: int, json_event: float) -> None:
    """The same pods in protobuf: no goals of their own, but no slower per object than JSON."""
    bodies = [proto_model.body_of(pod(seed)) for seed in range(count)]
    frames = [proto_model.event("MODIFIED", "v1", "Pod", body)[4:] for body in bodies]
    whole = proto_model.list_of("v1", "PodList", {"resourceVersion": "1"}, bodies)
    chunks = [whole[i : i + 65536] for i in range(0, len(whole), 65536)]
    total = sum(map(len, bodies)) / 1e9
    print(f"{count} pods in protobuf, mean {total * 1e9 / count:.0f} bytes")
    took = median_of(lambda: proto_events(frames))
    note("protobuf splice event with annotation", total / took, "GB/s")
    note("protobuf splice event with annotation, against JSON's without", took / count / json_event, "x time per object")
    note("protobuf list in 64 KiB chunks, cut, scanned, annotated", total / median_of(lambda: proto_stream(chunks)), "GB/s")


if __name__ == "__main__":
    raise SystemExit(main())
