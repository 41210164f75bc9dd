"""The queue's contract: once, never twice at once, order, delays."""

from __future__ import annotations

import asyncio

from services.scheduler.workqueue import WorkQueue


async def drain(queue: WorkQueue[str]) -> list[str]:
    found = []
    while len(queue):
        key = await queue.get()
        assert key is not None
        found.append(key)
        queue.done(key)
    return found


async def test_a_key_waits_once_and_order_wins() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key, order in (("a", (1,)), ("b", (2,)), ("a", (3,)), ("c", (0,)), ("b", (-1,))):
        queue.add(key, order)
    assert len(queue) == 3
    assert await drain(queue) == ["b", "c", "a"]


async def test_equal_order_is_first_in_first_out() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in "cab":
        queue.add(key)
    assert await drain(queue) == ["c", "a", "b"]


async def test_added_while_in_work_comes_again_once_and_not_before() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await drain(queue) == ["a"]


async def test_delays_and_the_earliest_wins() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 0.01)
    queue.add_after("b", 60)
    assert len(queue) == 0
    assert await asyncio.wait_for(queue.get(), 5) == "a"
    queue.add("b")
    assert await asyncio.wait_for(queue.get(), 5) == "b"
    queue.close()


async def test_get_waits_and_close_wakes() -> None:
    queue: WorkQueue[str] = WorkQueue()
    getter = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await getter == "a"
    getter = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.close()
    assert await getter is None
    queue.add("b")
    assert await queue.get() is None
