"""Who is woken by the log's growth, and in which order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from services.aggregator.clock.position import Position
from services.aggregator.clock.pulse import Pulse
from services.aggregator.clock.view import View
from services.aggregator.types import Aggregated
from services.common.errors import StatusError

PODS = Aggregated("pods", "", "v1", "pods", "Pod", namespaced=True)


async def test_answers_come_before_watchers() -> None:
    """A write's answer must not wait until thousands of watchers were served."""
    pulse, order, there = Pulse(), [], False

    async def watcher() -> None:
        await pulse.wait()
        order.append("watcher")

    async def writer() -> None:
        assert await pulse.until(lambda: there or None, 5)
        order.append("writer")

    tasks = [asyncio.ensure_future(one) for one in (watcher(), watcher(), writer(), watcher())]
    await asyncio.sleep(0)
    there = True
    pulse.beat()
    await asyncio.gather(*tasks)
    assert order == ["writer", "watcher", "watcher", "watcher"]


async def test_waiting_ends_in_time_and_leaves_nothing_behind() -> None:
    pulse = Pulse()
    assert await pulse.wait(0.001) is False
    assert await pulse.until(lambda: None, 0.001) is None
    assert not pulse._waiters and not pulse._first


def history(*versions: int) -> Any:
    """States of one object, newest first."""
    newest: Any = None
    for version in reversed(versions):
        newest = SimpleNamespace(version=version, deleted=False, uid="u", prev=newest)
    return newest


async def test_state_in_the_history_is_found_and_what_is_not_there_yet_is_not_searched_for() -> None:
    view: Any = View(PODS)
    states = history(30, 20, 10)
    view.marker = lambda *_: states
    found = await view.wait_version("east", "ns", "web", "u", 20, timeout=0)
    assert found is states.prev
    assert await view.wait_version("east", "ns", "web", "u", 25, timeout=0) is None, "passed over"
    del states.prev  # an AttributeError where the history of a version that is still to come is searched
    with pytest.raises(StatusError) as caught:
        await view.wait_version("east", "ns", "web", "u", 40, timeout=0)
    assert caught.value.code == 504


async def test_what_was_being_deleted_is_deleted_when_that_is_in_the_log() -> None:
    """By force, after a deletion with grace: its deletionTimestamp was there before."""
    view: Any = View(PODS)
    state = SimpleNamespace(version=20, deleted=False, deleting=True, uid="u", prev=None)
    view.marker = lambda *_: state
    await view.wait_deleted("east", "ns", "web", "u", timeout=0)
    await view.wait_deleted("east", "ns", "web", "u", timeout=0, version=20)
    with pytest.raises(StatusError):
        await view.wait_deleted("east", "ns", "web", "u", timeout=0, version=21)
    state.version, state.deleted = 21, True
    await view.wait_deleted("east", "ns", "web", "u", timeout=0, version=21)


async def test_what_came_and_went_unseen_is_not_waited_for() -> None:
    """The member was not followed for a moment: a diff shows neither the object that was deleted nor its deletion."""
    view: Any = View(PODS)
    view.marker = lambda *_: None
    view.state.positions["east"] = Position("life", 30, 30)
    await view.wait_deleted("east", "ns", "web", "u", timeout=0, version=20)
    for on_its_way in (0, 30, 40):
        with pytest.raises(StatusError) as caught:
            await view.wait_deleted("east", "ns", "web", "u", timeout=0, version=on_its_way)
        assert caught.value.code == 504
    view.state.positions["east"] = Position("life", 30, 30, diff=True)
    with pytest.raises(StatusError):
        await view.wait_deleted("east", "ns", "web", "u", timeout=0, version=20)
