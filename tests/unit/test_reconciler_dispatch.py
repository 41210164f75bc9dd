"""The workers of the built-in controllers: they work only while their replica has the host for sure."""

from __future__ import annotations

import asyncio
from typing import Any

from _fastpath.fair_queue import FairQueue
from services.reconciler.dispatch import Dispatcher
from services.reconciler.keys import Key

KEY = str(Key("job", "ns", "a"))


class Recording(Dispatcher):
    """Notes what it would reconcile."""

    def __init__(self, queue: FairQueue) -> None:
        self.valid = False
        self.asked = asyncio.Event()
        self.ran: list[str] = []
        super().__init__(None, queue, None, self._look)  # type: ignore[arg-type]

    def _look(self) -> bool:
        self.asked.set()
        return self.valid

    async def _reconcile(self, cluster: str, key: Any) -> None:
        self.ran.append(f"{cluster} {key}")


async def test_nothing_is_reconciled_by_a_replica_that_may_have_lost_the_host() -> None:
    queue = FairQueue(workers=1)
    queue.engage("east")
    dispatcher = Recording(queue)
    worker = asyncio.create_task(dispatcher.work())
    queue.add("east", KEY)
    async with asyncio.timeout(10):
        for _ in range(3):
            dispatcher.asked.clear()
            await dispatcher.asked.wait()
        assert not dispatcher.ran
        dispatcher.valid = True
        while not dispatcher.ran:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.01)
    assert dispatcher.ran == [f"east {KEY}"]
    queue.shut_down()
    await worker
    assert dispatcher.ran == [f"east {KEY}"]
