"""Markers, versions, positions and keys: what is stored comes back."""

from __future__ import annotations

import sys
import uuid

import pytest
from aetcd.rpc import rpc_pb2
from hypothesis import given
from hypothesis import strategies as st

from _fastpath.marker import (
    DIFF,
    EVENT,
    GAP,
    LEAVE,
    Marker,
    NameTable,
    decode_marker,
    first_after,
    of_cluster,
    puts,
    shared_values,
    visible,
)
from services.aggregator.clock import version
from services.aggregator.clock.keys import Layout
from services.aggregator.clock.position import Position, decode_position, incarnation, split_incarnation
from services.common.etcd import compare, op_put, txn_part

LIFE = "6b1e0000-0000-4000-8000-000000000001/0"
UID = "6b1e0000-0000-4000-8000-0000000000aa"
names = st.text(
    st.characters(codec="ascii", min_codepoint=45, exclude_characters="/"), min_size=1, max_size=40
)
uids = st.one_of(st.uuids().map(str), names, st.just("A" * 36), st.just(str(uuid.uuid4()).upper()))
lives = st.one_of(
    st.tuples(st.uuids().map(str), st.integers(0, 10**6)).map(lambda pair: incarnation(*pair)),
    names,
    st.just("6b1e0000-0000-4000-8000-000000000001/007"),
)


@given(st.lists(st.tuples(names, lives, st.text(max_size=300), st.text(min_size=1, max_size=300), uids), max_size=20))
def test_puts_are_what_protobuf_makes_of_them(texts: list[tuple[str, str, str, str, str]]) -> None:
    markers = [Marker(*each, 7, {"app": "web" * 40}) for each in texts]
    keys = Layout("/reclock/v1/")
    guards = [compare(b"leader", "create", "=", 7)]
    built = txn_part(guards) + puts(markers, keys.all("markers", "", "pods")) + txn_part((), [op_put(b"position", b"x")])
    ops = [
        op_put(keys.marker("", "pods", one.namespace, one.name, one.cluster), one.encode(index))
        for index, one in enumerate(markers)
    ]
    assert rpc_pb2.TxnRequest.FromString(built) == rpc_pb2.TxnRequest(compare=guards, success=[*ops, op_put(b"position", b"x")])


@given(
    st.tuples(names, lives, names, names, uids),
    st.integers(0, 2**63),
    st.integers(0, 2**53),
    st.dictionaries(names, st.text(max_size=20), max_size=5),
    st.booleans(),
    st.booleans(),
    st.sampled_from([EVENT, DIFF, GAP, LEAVE]),
    st.integers(0, 127),
)
def test_a_marker_comes_back_as_it_was_put(
    texts: tuple[str, ...], number: int, since: int, labels: dict[str, str], deleted: bool, deleting: bool,
    kind: int, index: int,
) -> None:  # fmt: skip
    one = Marker(*texts, number, labels, deleted=deleted, deleting=deleting, kind=kind)
    one.keep_since(since)
    at, back = decode_marker(one.cluster, one.namespace, one.name, one.encode(index))
    fields = [
        "cluster",
        "incarnation",
        "namespace",
        "name",
        "uid",
        "version",
        "since",
        "labels",
        "deleted",
        "deleting",
        "kind",
    ]
    assert at == index
    assert [getattr(back, field) for field in fields] == [getattr(one, field) for field in fields]
    assert back.same_state(one) and back.same_object(one)


@given(st.binary(max_size=80))
def test_garbage_is_refused_or_decoded_but_never_crashes(value: bytes) -> None:
    try:
        decode_marker("c", "n", "o", value)
    except (ValueError, OverflowError):
        return


def test_every_cut_of_a_value_is_refused() -> None:
    value = Marker("c", LIFE, "n", "o", UID, 5, {"app": "web"}).encode(3)
    for end in range(len(value)):
        with pytest.raises(ValueError, match=r"cut short|layout"):
            decode_marker("c", "n", "o", value[:end])


def test_a_newer_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="layout 2"):
        decode_marker("c", "n", "o", b"\x02" + Marker("c", LIFE, "n", "o", UID, 5).encode(0)[1:])


def test_a_marker_is_small_and_a_value_compact() -> None:
    one = Marker("east", LIFE, "default", "web-7c9d-x2x7q", UID, 88123, {"app": "web"})
    assert sys.getsizeof(one) <= 80
    assert len(one.encode(3)) <= 64


def test_labels_are_shared() -> None:
    one, two = (Marker("c", LIFE, "n", f"o{i}", UID, 5, {"app": "web"}) for i in range(2))
    assert one.labels is two.labels


def test_shared_values_go_when_nobody_has_them() -> None:
    for number in range(20_000):
        Marker("c", f"life/{number}", f"ns{number}", "o", UID, 5, {"job": str(number)})
    assert shared_values() < 10_000
    kept = [Marker("c", LIFE, "n", f"o{number}", UID, 5, {"job": f"k{number}"}) for number in range(5_000)]
    for number in range(20_000):
        Marker("c", f"life/{number}", "n", "o", UID, 5, {"job": f"x{number}"})
    assert [one.labels["job"] for one in kept] == [f"k{number}" for number in range(5_000)]


def test_a_long_history_is_freed_without_recursion() -> None:
    newest = None
    for number in range(300_000):
        one = Marker("c", LIFE, "n", "o", UID, number)
        one.stamp(number, 2, newest)
        newest = one
    del one
    newest = None


def test_before_is_the_state_that_was_shown() -> None:
    old = Marker("c", LIFE, "n", "o", UID, 1, {"a": "1"})
    old.stamp(10, 1, None)
    new = old.rewritten(GAP)
    new.stamp(11, 2, old)
    shown_again = old.rewritten(GAP)
    shown_again.stamp(12, 1, new)
    assert (new.before, shown_again.before, shown_again.prev) == (old, None, new)
    new.cut()
    assert new.before is None


def test_rewriting_keeps_since_until_the_object_is_deleted() -> None:
    one = Marker("c", LIFE, "n", "o", UID, 1)
    one.stamp(10, 1, None)
    assert one.since == 10
    assert one.rewritten(GAP).since == 10
    assert one.rewritten(LEAVE, deleted=True).since == 0
    moved = one.rewritten(DIFF, deleted=True, version=7, incarnation="x/1")
    assert (moved.version, moved.incarnation, moved.deleted, moved.uid) == (7, "x/1", True, UID)


def test_log_helpers() -> None:
    entries = []
    for fleet in range(10, 20):
        one = Marker("c" if fleet % 2 else "d", LIFE, "n", f"o{fleet}", UID, fleet, deleted=fleet == 15)
        one.stamp(fleet, fleet % 3, None)
        entries.append(one)
    assert [one.fleet for one in visible(entries, 2, 99)] == [13, 14, 16, 17, 19]
    assert [first_after(entries, 0, fleet) for fleet in (0, 10, 14, 19, 99)] == [0, 1, 5, 10, 10]
    assert [one.fleet for one in of_cluster(entries, "c")] == [11, 13, 17, 19]


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 127))
def test_fleet_versions(base: int, revision: int, index: int) -> None:
    fleet = version.encode(base, revision, index)
    assert fleet < 2**53
    assert version.decode(base, fleet) == (revision, index)
    assert version.encode(base, revision + 1, 0) > fleet


@pytest.mark.parametrize(("base", "revision", "index"), [(0, 0, 128), (0, 0, -1), (2**46, 0, 0)])
def test_fleet_versions_out_of_range(base: int, revision: int, index: int) -> None:
    with pytest.raises(ValueError):
        version.encode(base, revision, index)


@given(lives, st.integers(0, 2**63), st.integers(0, 2**63), st.booleans(), lives)
def test_positions(life: str, read: int, resume: int, diff: bool, target: str) -> None:
    one = Position(life, read, resume, diff, target)
    assert decode_position(one.encode()) == one
    with pytest.raises(ValueError):
        decode_position(b"\x09" + one.encode()[1:])
    with pytest.raises(ValueError):
        decode_position(one.encode()[:-1])


def test_incarnations() -> None:
    assert split_incarnation(incarnation(UID, 3)) == (UID, 3)
    assert split_incarnation("") == ("", 0)


def test_keys() -> None:
    keys = Layout("/reclock/v1")
    assert keys.marker("", "pods", "default", "web", "east") == b"/reclock/v1/markers//pods/default/web/east"
    assert keys.marker("", "nodes", "", "n1", "") == b"/reclock/v1/markers//nodes//n1/"
    for key in (
        keys.marker("g", "r", "n", "o", "c"), keys.marker("", "nodes", "", "n1", ""), keys.position("g", "r", "c"),
        keys.gap("", "r", ""), keys.claim("g", "r", "n", "o"), keys.leader("g", "r"), keys.base,
    ):  # fmt: skip
        parsed = keys.parse(key)
        assert parsed is not None and key.startswith(keys.prefix + parsed.kind.encode())
    parsed = keys.parse(keys.marker("g", "r", "n", "o", "c"))
    assert parsed is not None
    assert (parsed.group, parsed.resource, parsed.namespace, parsed.name, parsed.cluster) == (
        "g",
        "r",
        "n",
        "o",
        "c",
    )
    assert keys.parse(b"/other/markers/a") is None
    assert keys.parse(keys.prefix + b"markers/too/few") is None
    assert keys.parse(keys.prefix + b"unknown/a/b") is None


def named(name: str, number: int = 1) -> Marker:
    return Marker("c", LIFE, "n", name, UID, number)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=400))
def test_the_name_table_against_a_dict(steps: list[tuple[int, int]]) -> None:
    table, model = NameTable(), {}
    for number, (what, which) in enumerate(steps):
        name = f"web-{which}"
        if what == 0:
            table.remove(name)
            model.pop(name, None)
        else:
            slot = named(name, number) if what == 1 else [named(name, number), named(name, number + 1)]
            table.put(slot)
            model[name] = slot
        assert table.get(name) is model.get(name)
    assert len(table) == len(model)
    assert sorted(table.names()) == sorted(model)
    assert {id(slot) for slot in table.slots_now()} == {id(slot) for slot in model.values()}
    assert all(table.get(f"web-{which}") is model.get(f"web-{which}") for which in range(61))


def test_the_name_table_takes_only_what_it_can_name_and_frees_what_it_held() -> None:
    table = NameTable()
    for wrong in ("x", [], ["x"], None, 7):
        with pytest.raises(TypeError):
            table.put(wrong)  # type: ignore[arg-type]
    one = named("a")
    held = sys.getrefcount(one)
    table.put(one)
    table.put([one])
    table.remove("a")
    table.remove("a")
    assert sys.getrefcount(one) == held and len(table) == 0
    for number in range(5000):
        table.put(named(f"b{number}"))
    for number in range(0, 5000, 2):
        table.remove(f"b{number}")
    assert len(table) == 2500 and all((table.get(f"b{n}") is None) == (n % 2 == 0) for n in range(5000))
    del table
    assert sys.getrefcount(one) == held
