"""What the tests of the SDK share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any]) -> None:
    """Wait until it is so; the test fails when that takes 20 seconds."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - any condition, most of them without an event
            await asyncio.sleep(0.005)
