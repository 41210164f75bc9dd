"""Lists and watches in chunks, and rows of Tables."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import splice_model
from pods import compact, pod_bytes

from _fastpath import splice as fast


def chunked(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def run(chunks: list[bytes], field: bytes = b"items") -> tuple[fast.ListScanner, list[bytes], bytes]:
    scanner = fast.ListScanner(field)
    items = [item for chunk in chunks for item in scanner.feed(chunk)]
    return scanner, items, scanner.finish()


def pod_list(count: int, *, sort: bool = False, indent: int | None = None) -> tuple[bytes, list[bytes]]:
    """(list, raw items); `sort` gives the field order of custom resources: items before metadata."""
    raws = [pod_bytes(seed, typed=False) for seed in range(count)]
    meta = {"resourceVersion": "4711", "continue": 'to"k]en', "remainingItemCount": 12}
    value: dict[str, Any] = {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": ["@"]}
    text = json.dumps(value, sort_keys=sort, indent=indent)
    return text.replace('"@"', (b" , ".join(raws)).decode()).encode() + b"\n", raws


@pytest.fixture(params=fast.LEVELS[: fast.LEVELS.index(fast.best_level()) + 1], autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    fast.set_level(request.param)
    yield
    fast.set_level(fast.best_level())


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [1, 7, 63, 64, 65, 1000, 10**7])
def test_lists_in_any_cut(size: int, sort: bool, indent: int | None) -> None:
    data, raws = pod_list(7, sort=sort, indent=indent)
    scanner, items, tail = run(chunked(data, size))
    assert items == raws and scanner.count == 7
    assert scanner.head is not None and data.startswith(scanner.head + b"[")
    assert json.loads(scanner.head + b"[" + b",".join(items) + b"]" + tail) == json.loads(data)
    assert (scanner.list_version, scanner.continue_token, scanner.remaining) == ("4711", 'to"k]en', 12)


def test_items_appear_as_soon_as_they_are_complete() -> None:
    data, raws = pod_list(3)
    scanner = fast.ListScanner()
    at = data.index(raws[1])
    assert scanner.feed(data[: at - 1]) == raws[:1]
    assert scanner.feed(data[at - 1 : at + len(raws[1]) - 1]) == []
    assert scanner.feed(data[at + len(raws[1]) - 1 : at + len(raws[1])]) == raws[1:2]
    with pytest.raises(fast.SpliceError, match="cut short"):
        scanner.finish()


@pytest.mark.parametrize(
    ("raw", "items"),
    [
        ('{"items":[]}', 0),
        (' {"items" : [ ] } \n', 0),
        ('{"items":null,"metadata":{"resourceVersion":"3"}}', 0),
        ('{"metadata":{"resourceVersion":"3"},"items": null }', 0),
        ('{"a":{"items":[{}]},"items":[{"items":[{}]}],"b":[]}', 1),
        ('{"\\u0069tems":[{}, {"a":"]}"}]}', 2),
        ('{"x":true,"y":-1.5e3,"z":"[","items":[{}]}', 1),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_shapes_of_lists(raw: str, items: int, size: int) -> None:
    data = raw.encode()
    scanner, got, tail = run(chunked(data, size))
    want, meta = splice_model.cut_list(data)
    assert [json.loads(i) for i in got] == want and len(got) == items
    assert scanner.list_version == meta.get("resourceVersion", "")
    joined = (scanner.head or b"") + b"[" + b",".join(got) + b"]" + tail
    assert json.loads(joined) == {**json.loads(data), "items": want}


@pytest.mark.parametrize(
    "raw",
    [
        "[]",
        "5",
        '{"items":5}',
        '{"items":{}}',
        '{"items":[5]}',
        '{"items":[{},]}',
        '{"items":[,{}]}',
        '{"items":[{}{}]}',
        '{"items":[{} {}]}',
        '{"items":[{}],}',
        '{"items":[]}}',
        '{"items":[]} x',
        '{"items" []}',
        "{items:[]}",
        '{"items":[{}',
        '{"items":[',
        '{"items":[]',
        '{"items":',
        "{",
        "",
        "{}",
        '{"kind":"Status"}',
        '{"items":[{}}',
        '{"a":1 "items":[]}',
        '{,"items":[]}',
        '{"items"::[]}',
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_no_list_is_an_error(raw: str, size: int) -> None:
    with pytest.raises(fast.SpliceError):
        run(chunked(raw.encode(), size))


def test_a_broken_list_stays_broken() -> None:
    scanner = fast.ListScanner()
    with pytest.raises(fast.SpliceError):
        scanner.feed(b'{"items":[5')
    with pytest.raises(fast.SpliceError, match="before"):
        scanner.feed(b"]}")


def test_what_is_held_is_bounded() -> None:
    scanner = fast.ListScanner(max_item=1000)
    scanner.feed(b'{"items":[')
    with pytest.raises(fast.SpliceError, match="longer than 1000"):
        for _ in range(100):
            scanner.feed(b'{"a":[' + b" " * 100)
    scanner = fast.ListScanner(max_envelope=1000)
    scanner.feed(b'{"a":"')
    with pytest.raises(fast.SpliceError, match="longer than 1000"):
        for _ in range(100):
            scanner.feed(b"x" * 100)


def test_list_items_gives_offsets() -> None:
    data, raws = pod_list(4)
    head, spans, tail = fast.list_items(data)
    assert [data[a:b] for a, b in spans] == raws
    assert data.startswith(head + b"[") and data.endswith(b"]" + tail + b"\n")
    same = b'{"items":[{},{},{}]}'
    assert fast.list_items(same)[1] == [(10, 12), (13, 15), (16, 18)]


@pytest.mark.parametrize("size", [1, 5, 64, 10**6])
def test_frames_are_cut_at_newlines(size: int) -> None:
    frames = [b'{"type":"ADDED","object":' + pod_bytes(seed) + b"}" for seed in range(5)]
    splitter = fast.FrameSplitter()
    data = b"\n\n" + b"\n".join(frames[:3]) + b"\r\n" + b"\n".join(frames[3:])
    got = [f for chunk in chunked(data, size) for f in splitter.feed(chunk)]
    assert got == frames[:4] and splitter.pending == len(frames[4])
    assert splitter.feed(b"\n") == frames[4:] and splitter.pending == 0


def test_a_frame_is_bounded() -> None:
    splitter = fast.FrameSplitter(100)
    assert splitter.feed(b"x" * 60) == []
    with pytest.raises(fast.SpliceError, match="longer than 100"):
        splitter.feed(b"x" * 41)


# --- Table rows ---
ROW = {
    "cells": ["web", "1/1", {"a": "]"}, 5],
    "object": {"kind": "PartialObjectMetadata", "metadata": {"name": "w"}},
}


@pytest.mark.parametrize("order", [["cells", "object"], ["object", "cells"]])
def test_rows(order: list[str]) -> None:
    row = compact({k: ROW[k] for k in order})
    a, b = fast.table_row_object(row)
    assert json.loads(row[a:b]) == ROW["object"]
    lib: ModuleType
    for lib in (fast, splice_model):
        for index in (0, 1, 4, 99):
            want = list(ROW["cells"])
            want.insert(index, "east")
            assert json.loads(lib.insert_cell(row, index, b'"east"')) == {
                "cells": want,
                "object": ROW["object"],
            }
        assert json.loads(lib.permute_cells(row, [2, -1, 0, 9]))["cells"] == [{"a": "]"}, None, "web", None]


@pytest.mark.parametrize(
    "row", [b"", b"[]", b"{", b'{"cells":1}', b'{"cells":[1', b'{"cells":[1}', b'{"cell":[]}']
)
def test_rows_that_are_none(row: bytes) -> None:
    with pytest.raises(fast.SpliceError):
        fast.insert_cell(row, 0, b"1")
    with pytest.raises(fast.SpliceError):
        fast.permute_cells(row, [0])
    with pytest.raises(fast.SpliceError):
        fast.table_row_object(row)


def test_random_cuts_of_random_lists() -> None:
    rng = random.Random(7)
    for _ in range(60):
        data, raws = pod_list(rng.randint(0, 5), sort=rng.random() < 0.5, indent=rng.choice([None, 1]))
        if not raws:
            data = data.replace(b'"@"', b"")
        cuts = sorted(rng.randrange(len(data)) for _ in range(rng.randint(0, 30)))
        chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        _, items, _ = run(chunks)
        assert items == raws
