"""Waiting on the event loop: nothing polls, no wake-up is lost, the end reaches everybody."""

from __future__ import annotations

import asyncio

import pytest

from _fastpath.fair_queue import FairQueue, Item, ShutDown


def queue_of(*clusters: str, **options: int) -> FairQueue:
    queue = FairQueue(**options)  # type: ignore[arg-type]
    for cluster in clusters:
        queue.engage(cluster, cap=1000)
    return queue


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_get_waits_for_an_add() -> None:
    queue = queue_of("a")
    task = asyncio.create_task(queue.get())
    await settle()
    assert not task.done()
    queue.add("a", "x")
    assert (await task).key == "x"


async def test_get_does_not_wait_when_there_is_one() -> None:
    queue = queue_of("a")
    queue.add("a", "x")
    coroutine = queue.get()
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value.key == "x"


async def test_get_many_takes_several_per_wake() -> None:
    queue = queue_of("a")
    task = asyncio.create_task(queue.get_many(3))
    await settle()
    for i in range(5):
        queue.add("a", f"{i}")
    assert [i.key for i in await task] == ["0", "1", "2"]
    assert [i.key for i in await queue.get_many(10)] == ["3", "4"]
    with pytest.raises(ValueError, match="limit"):
        await queue.get_many(0)


async def test_each_waiter_gets_one() -> None:
    queue = queue_of("a")
    tasks = [asyncio.create_task(queue.get()) for _ in range(5)]
    await settle()
    for i in range(5):
        queue.add("a", f"{i}")
    assert sorted(i.key for i in await asyncio.gather(*tasks)) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_cancelled_waiter_takes_no_wake_up_with_it(when: str) -> None:
    queue = queue_of("a")
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await settle()
    if when == "before":
        first.cancel()
        await settle()
    queue.add("a", "x")
    first.cancel()
    assert (await second).key == "x"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_done_and_every_change_of_limits_wake() -> None:
    queue = queue_of("a", "b")
    queue.set_cap("a", 1)
    for key in "xyz":
        queue.add("a", key)
    item = await queue.get()
    waiter = asyncio.create_task(queue.get())
    await settle()
    assert not waiter.done()
    queue.done(item)
    assert (await waiter).key == "y"
    waiter = asyncio.create_task(queue.get())
    await settle()
    queue.set_cap("a", 2)
    assert (await waiter).key == "z"
    queue.pause("b")
    queue.add("b", "w")
    waiter = asyncio.create_task(queue.get())
    await settle()
    assert not waiter.done()
    queue.resume("b")
    assert (await waiter).key == "w"


async def test_delayed_keys_wake_by_one_timer() -> None:
    queue = queue_of("a")
    waiter = asyncio.create_task(queue.get_many(5))
    await settle()
    queue.add_after("a", "late", 30)
    queue.add_after("a", "soon", 0.02)
    assert [i.key for i in await waiter] == ["soon"]
    waiter = asyncio.create_task(queue.get_many(5))
    await settle()
    queue.add_after("a", "late", 0.01)
    assert [i.key for i in await waiter] == ["late"]


async def test_a_delay_that_was_there_before_the_waiter() -> None:
    queue = queue_of("a")
    queue.add_after("a", "x", 0.01)
    assert (await queue.get()).key == "x"
    queue.add_rate_limited("a", "y")
    assert (await queue.get()).key == "y"


async def test_shut_down_ends_all_waiters() -> None:
    queue = queue_of("a")
    tasks = [asyncio.create_task(queue.get()) for _ in range(3)]
    await settle()
    queue.shut_down()
    for task in tasks:
        with pytest.raises(ShutDown):
            await task
    with pytest.raises(ShutDown):
        await queue.get()
    with pytest.raises(ShutDown):
        await queue.get_many(3)


async def test_shut_down_hands_out_what_is_queued_first() -> None:
    queue = queue_of("a", "paused")
    queue.set_cap("a", 1)
    queue.add("a", "x")
    queue.add("a", "y")
    queue.add("paused", "z")
    queue.pause("paused")
    queue.shut_down()
    item = await queue.get()
    waiter, other = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await settle()
    assert not waiter.done() and not other.done(), "y waits for the cap"
    queue.done(item)
    assert (await waiter).key == "y"
    with pytest.raises(ShutDown):
        await other


async def test_drain_waits_for_what_is_processed() -> None:
    queue = queue_of("a")
    queue.add("a", "x")
    queue.add("a", "y")
    items = await queue.get_many(2)
    drains = [asyncio.create_task(queue.drain()) for _ in range(2)]
    await settle()
    queue.done(items[0])
    await settle()
    assert not any(d.done() for d in drains)
    assert queue.add("a", "z") is False
    queue.done(items[1])
    await asyncio.gather(*drains)
    await queue.drain()


async def test_disengaging_the_last_cluster_lets_a_shut_down_queue_end() -> None:
    queue = queue_of("a")
    queue.set_cap("a", 1)
    queue.add("a", "x")
    queue.add("a", "y")
    item = await queue.get()
    queue.shut_down()
    waiter = asyncio.create_task(queue.get())
    await settle()
    assert queue.disengage("a") == 1
    with pytest.raises(ShutDown):
        await waiter
    drain = asyncio.create_task(queue.drain())
    await settle()
    assert not drain.done()
    queue.done(item)
    await drain


async def test_many_producers_and_workers_lose_nothing() -> None:
    queue = queue_of(*(f"c{i}" for i in range(7)))
    for i in range(7):
        queue.set_cap(f"c{i}", 2)
    seen: dict[str, int] = {}
    running: set[str] = set()
    finished, total = asyncio.Event(), 4 * 200 + 4 * 67

    async def work(index: int) -> None:
        while True:
            try:
                items: list[Item] = [await queue.get()] if index % 2 else await queue.get_many(3)
            except ShutDown:
                return
            for item in items:
                name = f"{item.cluster}:{item.key}"
                assert name not in running
                running.add(name)
            await asyncio.sleep(0)
            for item in items:
                running.discard(f"{item.cluster}:{item.key}")
                seen[item.key] = seen.get(item.key, 0) + 1
                queue.done(item)
            if len(seen) == total:
                finished.set()

    async def produce(index: int) -> None:
        for i in range(200):
            queue.add(f"c{i % 7}", f"{index}/{i}")
            if i % 3 == 0:
                queue.add_after(f"c{i % 7}", f"later-{index}/{i}", 0.001)
            await asyncio.sleep(0)

    workers = [asyncio.create_task(work(i)) for i in range(9)]
    await asyncio.gather(*(produce(i) for i in range(4)))
    await finished.wait()
    await queue.drain()
    await asyncio.gather(*workers)
    assert len(seen) == total and set(seen.values()) == {1}


async def test_ready_waits_without_taking() -> None:
    queue = queue_of("a")
    task = asyncio.create_task(queue.ready())
    await settle()
    assert not task.done() and not queue.has_ready()
    queue.add_after("a", "x", 0.01)
    await task
    assert queue.has_ready() and len(queue) == 1
    item = queue.get_nowait()
    assert item is not None
    queue.add("a", "x")
    task = asyncio.create_task(queue.ready())
    await settle()
    assert not task.done()
    queue.done(item)
    await task
    queue.pause("a")
    queue.shut_down()
    with pytest.raises(ShutDown):
        await queue.ready()
