"""YAML from outside: read as Kubernetes reads it, whatever it is, and never at the event loop's expense."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from services.common import yaml_json
from services.common.errors import StatusError
from services.common.yaml_json import yaml_to_json

BOMB = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b", ".join([b"*%c" % (name - 1)] * 9)) for name in range(ord("b"), ord("j"))
)
MERGES = b"a: &a0 {x: 1}\n" + b"".join(b"m%d: &a%d {<<: [*a%d, *a%d]}\n" % (n, n, n - 1, n - 1) for n in range(1, 40))
"""Each mapping has the pairs of the one before twice: 2^39 for a reader that takes them one by one."""


async def read(text: bytes) -> Any:
    return json.loads(await yaml_to_json(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("22:22", "22:22"), ("2025-01-01", "2025-01-01"), ("1e3", 1000.0), ("0x1f", 31), ("010", 8), ("-3", -3), ("1_000", 1000),
        ("1.5", 1.5), ('"12"', "12"), ("yes", True), ("~", None), ("v1", "v1"), ("1.2.3", "1.2.3"), (".5", 0.5), ("-", [None]),
    ],
)  # fmt: skip
async def test_plain_values_are_what_kubernetes_takes_them_for(text: str, value: object) -> None:
    assert await read(f"a: {text}\n".encode() if text != "-" else b"a:\n-\n") == {"a": value}


async def test_aliases_are_read() -> None:
    assert await read(b"a: &a {x: 1}\nb: *a\nc: [*a, 2]\nd: {<<: *a, y: 2}\n") == {
        "a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, 2], "d": {"x": 1, "y": 2},
    }  # fmt: skip


async def test_merges_of_merges_stay_small() -> None:
    assert (await read(MERGES))["m39"] == {"x": 1}


async def test_json_is_passed_on() -> None:
    text = b' {"a": 1.0, "b":"x"}'
    assert await yaml_to_json(text) is text
    assert await read(b"{a: 1}") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (BOMB, 413), (b"a: &a [*a]\n", 413), (b"a: &a {<<: *a}\n", 0),
        (b"a: &a " + b"x" * 100_000 + b"\nb: [" + b"*a, " * 1000 + b"]\n", 413),
        (b"a: !!int \"1" + b":1" * 50 + b"\"\n", 400), (b"a: " + b"1" * 5000 + b"\n", 400), (b"a: .nan\n", 400),
        (b"a: [", 400), (b"[" * 3000, 400), (b"[" * 3_000_000, 400), (b"\xff\xfa", 400), (b"a: !!python/object:os.system x", 400),
    ],
    ids=range(12),
)  # fmt: skip
async def test_what_is_none_or_stands_for_far_more_than_it_says(text: bytes, code: int) -> None:
    if not code:
        assert await read(text) == {"a": {}}
        return
    with pytest.raises(StatusError) as refused:
        await yaml_to_json(text)
    assert refused.value.code == code


async def test_the_event_loop_goes_on_while_3_mib_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of work. The loop's own turns show that it is done elsewhere: here there would be one."""
    monkeypatch.setattr(yaml_json, "LIMIT", 300.0)
    item = b"- name: a\n  value: '" + b"x" * 70 + b"'\n"
    text = b"items:\n" + item * (3_000_000 // len(item))
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    task = asyncio.create_task(turn())
    made = await read(text)
    task.cancel()
    assert len(made["items"]) == text.count(b"- name")
    assert turns >= 20


async def test_many_at_once_are_refused_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_json, "WAITING", 1)
    text = b"a: &a 1\nb: *a\n"
    outcomes = await asyncio.gather(*(yaml_to_json(text) for _ in range(3)), return_exceptions=True)
    assert [getattr(one, "code", 200) for one in outcomes] == [200, 429, 429]
    assert await read(text) == {"a": 1, "b": 1}


async def test_what_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_json, "LIMIT", 0.01)
    with pytest.raises(StatusError) as refused:
        await yaml_to_json(b"a: &a 1\nb: *a\n")
    assert refused.value.code == 413
