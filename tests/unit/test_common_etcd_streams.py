"""Streams of etcd that end at the wrong moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.common import etcd as module
from services.common.etcd import Etcd, EtcdUnavailable


class Ended:
    """A call that is over when its second message is to be written."""

    def __init__(self, writes: int) -> None:
        self.left = writes
        self.cancelled = False

    async def write(self, _: Any) -> None:
        if not self.left:
            raise asyncio.InvalidStateError("RPC already finished.")
        self.left -= 1

    async def read(self) -> Any:
        await asyncio.sleep(60)

    def cancel(self) -> None:
        self.cancelled = True


def etcd_of(call: Ended) -> Etcd:
    stub = SimpleNamespace(Watch=lambda metadata: call)
    return Etcd([SimpleNamespace(watch=stub, failures=0)], 5.0)  # type: ignore[list-item]


@pytest.mark.parametrize("writes", [0, 1])
async def test_a_watch_that_ended_as_it_was_asked_for_progress(
    monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    monkeypatch.setattr(module, "WATCH_PROGRESS", 0.01)
    monkeypatch.setattr(module, "WATCH_DOUBT", 0.01)
    call = Ended(writes)
    with pytest.raises(EtcdUnavailable, match="the stream ended"):
        await anext(etcd_of(call).watch(b"a"))
    assert call.cancelled

