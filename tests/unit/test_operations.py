"""`/reclock/markers/…`: what goes wrong while lines are sent is the last line."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from services.aggregator.clock.store import StartRefused, StorageChanged
from services.aggregator.pages.operations import Operations
from services.common.errors import unavailable


async def lines(error: Exception) -> AsyncIterator[dict[str, Any]]:
    yield {"kind": "Rebuilt"}
    raise error


@pytest.mark.parametrize("error", [
    lambda: StartRefused("it is another fleet's"), lambda: StorageChanged("it was rebuilt"), lambda: unavailable("away"),
])  # fmt: skip
async def test_what_goes_wrong_is_said_in_the_last_line(error: Callable[[], Exception]) -> None:
    sent: list[bytes] = []

    async def write(data: bytes) -> None:
        sent.append(data)

    raised = error()
    await Operations(SimpleNamespace(), "f")._stream(lines(raised), write)  # type: ignore[arg-type]
    told = [msgspec.json.decode(one) for one in sent]
    assert [one["kind"] for one in told] == ["Rebuilt", "Failed"]
    assert told[-1]["message"] == (getattr(raised, "message", "") or str(raised))
