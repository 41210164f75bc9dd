"""Items of members' lists in C, against what plain Python makes of the same."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reads_fake import FakeClock

from _fastpath import proto, splice
from _fastpath.listing import Item, Merger, read_items, read_rows
from _fastpath.marker import Marker
from _fastpath.splice import SpliceError, insert_cell, shown_row
from services.aggregator.clock.position import Position
from services.aggregator.reads.walk import Plan, Restart, Walk

LIVES = {"east": "east-uid/0", "west": "west-uid/0"}


def item(name: str, version: int = 1, *, uid: str = "", source: int = 0) -> Item:
    meta = SimpleNamespace(namespace="default", name=name, version=str(version), uid=uid)
    one = Item(b"", meta, 0)
    merger = Merger(source + 1)
    merger.feed(source, [one])  # who feeds it says whose it is
    return one


def test_items_say_what_their_metadata_says() -> None:
    raw = b'{"metadata":{"name":"p\\u00e9","namespace":"ns","resourceVersion":"12","uid":"u"},"spec":{}}'
    (one,) = read_items([raw], splice.scan)
    assert (one.key, one.namespace, one.name, one.version, one.end) == ("ns/p\u00e9", "ns", "p\u00e9", 12, len(raw))
    (bare,) = read_items([b'{"metadata":{"name":"n"}}'], splice.scan)
    assert (bare.key, bare.version) == ("n", 0)
    row = b'{"cells":["n"],"object":' + raw + b"}"
    (one,) = read_rows([row], splice.scan)
    assert one.key == "ns/p\u00e9" and one.raw[one.meta.start : one.end] == raw


@pytest.mark.parametrize("version", ['"1x"', '"-1"', '"1.0"', '"\u0661"', '"99999999999999999999"'])
def test_versions_that_are_none_are_refused(version: str) -> None:
    with pytest.raises(SpliceError):
        read_items([b'{"metadata":{"name":"n","resourceVersion":' + version.encode() + b"}}"], splice.scan)


def test_protobuf_items() -> None:
    import proto_model as model

    body = model.body_of({"metadata": {"name": "n", "namespace": "ns", "resourceVersion": "7", "uid": "u"}}, "v1", "Pod")
    (one,) = read_items([body], proto.scan)
    assert (one.key, one.version) == ("ns/n", 7)


def test_a_merger_gives_nothing_while_a_source_may_have_something_earlier() -> None:
    merger = Merger(2)
    merger.feed(0, [item("a"), item("c")])
    assert merger.take(9) == [] and merger.lacks == {1}
    merger.feed(1, [item("b")])
    assert [one.name for one in merger.take(9)] == ["a", "b"] and merger.lacks == {1}
    merger.feed(0, [item("d")])
    assert [one.name for one in merger.left(0)] == ["c", "d"]
    merger.end(1)
    assert [one.name for one in merger.take(1)] == ["c"] and merger.waiting
    assert [one.name for one in merger.take(9)] == ["d"] and not merger.waiting


@given(st.integers(0, 10_000))
def test_numbers_are_those_of_the_long_way(seed: int) -> None:
    rng = random.Random(seed)
    clock = FakeClock()
    for cluster, life in LIVES.items():
        clock.commit({cluster: Position(life, 1, 0)})
    uid = lambda number: f"{number:08d}-0000-4000-8000-000000000000"  # noqa: E731
    states = []
    for step in range(rng.randint(1, 30)):
        cluster = rng.choice(list(LIVES))
        name, number, life = f"p{rng.randint(0, 4)}", rng.randint(0, 3), LIVES[cluster]
        if rng.random() < 0.1:
            life = f"{cluster}-uid/1"
        shown_uid = uid(number) if rng.random() < 0.9 else "no-uuid"
        marker = Marker(cluster, life, "default", name, shown_uid, step + 10, {}, deleted=rng.random() < 0.2)
        clock.commit({cluster: Position(life, step + 10, step + 9)}, marker)
        states.append((cluster, name, shown_uid, step + 10))
    at = rng.choice([clock.head, clock.head, states and clock.marker(*states[-1][:1], "default", states[-1][1]).fleet])
    plan = Plan(at, {c: Position(life, 1, 0) for c, life in LIVES.items()}, {}, "", "", {}, {})
    walk = Walk(clock, None, plan)  # type: ignore[arg-type]
    items = []
    for cluster, name, shown_uid, version in states:
        items.append(item(name, version, uid=shown_uid, source=list(LIVES).index(cluster)))
    quick = clock.numbers(items, list(LIVES), list(LIVES.values()), at)
    for one, number in zip(items, quick, strict=True):
        try:
            slow: Any = walk._number(list(LIVES)[one.source], one)
        except Restart:
            slow = None
        assert number in (0, slow), (one.key, number, slow)
        alone = len(clock.state.index.markers("default", one.name)) == 1
        assert number or slow is None or not alone or one.meta.uid == "no-uuid" or clock.shown("default", one.name).fleet > at


cells = st.lists(st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text(max_size=3), max_size=2)), max_size=4)


@given(cells, st.integers(-1, 6), st.sampled_from(["{}", '{"a": "]}"}', "null"]), st.booleans(), st.booleans())
def test_a_row_in_one_copy_is_the_row_in_several(values: list[Any], index: int, obj: str, first: bool, wide: bool) -> None:
    text = json.dumps(values, separators=None if wide else (",", ":"))
    fields = [f'"cells":{text}', f'"object":{obj}']
    row = ("{" + ", ".join(fields if first else fields[::-1]) + "}").encode()
    start = row.index(f'"object":{obj}'.encode()) + 9
    end = start + len(obj)
    new = b'{"metadata":{"name":"x"}}'
    got = shown_row(row, start, end, new, index, b'"east"')
    assert json.loads(got) == json.loads(insert_cell(row[:start] + new + row[end:], index, b'"east"'))


@pytest.mark.parametrize("row", [b'{"object":{}}', b'{"cells":{},"object":{}}', b'{"cells":["a","object":{}}', b"[]"])
def test_rows_that_are_none_are_refused(row: bytes) -> None:
    with pytest.raises(SpliceError):
        shown_row(row, len(row) - 3, len(row) - 1, b"{}", 1, b'"east"')
    with pytest.raises(SpliceError):
        shown_row(b'{"cells":[],"object":{}}', 5, 99, b"{}", 1, b'"east"')
