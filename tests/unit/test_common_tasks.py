"""Supervised tasks and back-off."""

from __future__ import annotations

import asyncio

import pytest

from services.common.tasks import Backoff, Tasks, backoff


async def test_a_failed_task_is_reported() -> None:
    seen: list[tuple[str, BaseException | None]] = []

    async def fail() -> None:
        raise ValueError("no")

    tasks = Tasks("t", lambda name, error: seen.append((name, error)))
    tasks.spawn(fail(), "bad")
    await asyncio.sleep(0.01)
    assert seen[0][0] == "t/bad"
    assert isinstance(seen[0][1], ValueError)
    assert len(tasks) == 0


async def test_only_a_root_task_may_not_end() -> None:
    seen: list[str] = []
    tasks = Tasks("t", lambda name, error: seen.append(name))
    tasks.spawn(asyncio.sleep(0), "plain")
    tasks.spawn(asyncio.sleep(0), "root", root=True)
    await asyncio.sleep(0.01)
    assert seen == ["t/root"]


async def test_close_cancels_and_refuses_more() -> None:
    tasks = Tasks("t")
    cancelled: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append("x")
            raise

    tasks.spawn(hang(), "a")
    tasks.spawn(hang(), "b")
    await asyncio.sleep(0)
    await tasks.close()
    assert cancelled == ["x", "x"]
    assert len(tasks) == 0
    with pytest.raises(RuntimeError):
        tasks.spawn(asyncio.sleep(0), "late")


def test_backoff_grows_to_its_maximum_and_takes_hints() -> None:
    delays = Backoff(initial=1, maximum=8, jitter=0)
    assert [delays.next_delay() for _ in range(5)] == [1, 2, 4, 8, 8]
    assert delays.next_delay(hint=100) == 8
    delays.reset()
    assert delays.next_delay(hint=3) == 3
    jittered = Backoff(initial=1, maximum=1, jitter=0.5)
    assert all(0.5 <= jittered.next_delay() <= 1 for _ in range(100))


async def test_backoff_iterator_ends_by_attempts_and_deadline() -> None:
    assert [n async for n in backoff(initial=0.001, attempts=3)] == [0, 1, 2]
    deadline = asyncio.get_running_loop().time() - 1
    assert [n async for n in backoff(initial=0.001, deadline=deadline)] == [0]
