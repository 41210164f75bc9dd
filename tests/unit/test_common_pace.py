"""Rare events never wait; fast ones gather; a flood is not held up."""

from __future__ import annotations

import asyncio

import pytest

from services.common.pace import Pace


@pytest.mark.parametrize(("rate", "waits"), [(50, False), (250, False), (700, True), (2000, True), (20_000, False)])
async def test_pause_by_rate(rate: int, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    pace = Pace(0.003)
    for _ in range(rate):
        now += 1 / rate
        pace.stepped(1)
    assert (pace.left() > 0) is waits
    assert pace.left() < 0.0031
    now += 0.004
    assert pace.left() <= 0  # never longer than that after the last step


async def test_the_pause_grows_up_to_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    pauses = []
    for rate in (400, 500, 750, 2000):
        pace = Pace(0.0045, 750.0)
        for _ in range(2 * rate):
            now += 1 / rate
            pace.stepped(1)
        pauses.append(pace.left())
    assert pauses == pytest.approx([0.001, 0.002, 0.0045, 0.0045], abs=0.0003)
