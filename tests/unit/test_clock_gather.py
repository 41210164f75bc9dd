"""Commits gather events while they come fast, and do not while work is left over from the batch before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_clock_purge import BASE, LIFE, put

from services.aggregator.clock.position import Position
from services.aggregator.clock.sequencer import Sequencer
from services.aggregator.clock.state import Change, State


class Store:
    """Commits at once."""

    revision = 2

    async def commit(self, *_: Any) -> int:
        self.revision += 1
        return self.revision


@pytest.mark.parametrize("names", [1, 400], ids=["each batch ends before the key's second event", "there is room"])
async def test_a_queue_that_was_not_emptied_is_not_waited_for(names: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else as many events as never fill a batch would wait for ever: each commit takes one, and one comes."""
    state = State(BASE, 1)
    state.apply(Change(2, [], {"east": Position(LIFE, 1, 1)}))
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def recorded(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    sequencer = Sequencer(Store(), "", "pods", state=state, term=1, committed=lambda *_: None, limit=2)  # type: ignore[arg-type]
    monkeypatch.setattr("services.aggregator.clock.sequencer.asyncio.sleep", recorded)
    monkeypatch.setattr(type(sequencer), "waiting", 0)  # as few as never fill a batch
    for number in range(400):
        sequencer.put_nowait("east", put(f"a{number % names}", 10 + number))
    task = asyncio.create_task(sequencer.run())
    await sequencer.drained("east")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(state.log) == 400
    assert len([pause for pause in pauses if pause > 0]) <= 1  # when the queue was empty at last
