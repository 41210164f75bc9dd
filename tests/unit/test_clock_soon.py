"""What looks at all members runs once for many reports."""

from __future__ import annotations

import asyncio

from services.aggregator.clock.soon import Soon


async def test_many_calls_are_one_run_and_one_after_it_is_another() -> None:
    runs: list[int] = []
    soon = Soon(lambda: runs.append(1), lambda: 10)
    for _ in range(100):
        soon()
    assert soon.due
    assert not runs
    await asyncio.sleep(0.05)
    assert len(runs) == 1
    assert not soon.due
    soon()
    await asyncio.sleep(0.05)
    assert len(runs) == 2


async def test_it_need_not_run_when_it_was_run_otherwise() -> None:
    runs: list[int] = []
    soon = Soon(lambda: runs.append(1), lambda: 0)
    soon()
    soon.done()
    await asyncio.sleep(0.01)
    assert not runs
