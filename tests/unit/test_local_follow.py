"""A client is started anew when its service is back after a while, and only then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deploy.local import follow
from deploy.local.probes import until
from deploy.local.process import Process


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Process, Process]]:
    monkeypatch.setattr(follow, "EVERY", 0.02)
    monkeypatch.setattr(follow, "PATIENCE", 0.1)
    service, client = (Process(name, ["sleep", "600"], log=tmp_path / name) for name in ("service", "client"))
    await asyncio.gather(service.start(), client.start())
    task = asyncio.create_task(follow.follow(service, client))
    yield service, client
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await asyncio.gather(service.stop(0), client.stop(0))


async def outage(service: Process, seconds: float) -> None:
    await service.kill9()
    await asyncio.sleep(seconds)
    await service.start()


async def test_after_an_outage_the_client_is_another_process(pair: tuple[Process, Process]) -> None:
    service, client = pair
    before = client.pid
    await outage(service, 0.5)

    async def anew() -> str | None:
        return None if client.pid not in (None, before) else "the same process"

    await until(anew, "not started anew", 30)


async def test_a_client_that_was_stopped_stays_stopped(pair: tuple[Process, Process]) -> None:
    service, client = pair
    await client.stop(0)
    await outage(service, 0.5)
    await asyncio.sleep(0.3)
    assert not client.running


async def test_a_blink_leaves_the_client_alone(pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PATIENCE", 600.0)
    service, client = pair
    before = client.pid
    await outage(service, 0.2)
    await asyncio.sleep(0.3)
    assert client.pid == before
