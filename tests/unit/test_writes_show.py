"""Answers of writes carry a number only where the log has just that state."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from _fastpath.splice import scan
from services.aggregator.writes.send import show_settled


@pytest.mark.parametrize(
    ("uid", "version", "shown"), [("u1", 7, "700"), ("u1", 6, None), ("u2", 7, None)]
)
async def test_the_number_is_of_the_object_that_is_shown(uid: str, version: int, shown: str | None) -> None:
    marker = SimpleNamespace(uid="u1", version=7, fleet=700)
    body = json.dumps(
        {"metadata": {"name": "a", "namespace": "n", "uid": uid, "resourceVersion": str(version)}}
    ).encode()

    async def present(aggregated: Any, cluster: str, body: bytes, meta: Any, number: int) -> bytes:
        assert scan(body).uid == uid
        return body.replace(b'"resourceVersion": "%d"' % version, b'"resourceVersion": "%d"' % number)

    context: Any = SimpleNamespace(reads=SimpleNamespace(present=present))
    clock: Any = SimpleNamespace(marker=lambda *place: marker, aggregated=None)
    answer = json.loads(await show_settled(context, clock, "east", body))
    assert answer["metadata"].get("resourceVersion") == shown
