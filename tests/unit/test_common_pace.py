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
