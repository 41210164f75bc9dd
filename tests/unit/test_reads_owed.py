"""States that watches passed over for newer ones of their members, which the log has not named yet."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from reads_fake import PODS, FakeClock

from services.aggregator.reads import owed as module
from services.aggregator.reads.owed import Owed
from services.common.errors import StatusError

UID = "11111111-2222-4333-8444-555555555555"


class Member:
    """Has one pod at `version`; 0: it is gone."""

    def __init__(self, version: int) -> None:
        self.version, self.asked = version, 0
        self.client = self

    async def request(self, method: str, path: str, **options: Any) -> Any:
        assert (method, path) == ("GET", "/api/v1/namespaces/default/pods/a")
        self.asked += 1
        if not self.version:
            raise StatusError(404, "NotFound", "no such pod")
        return SimpleNamespace(body=json.dumps(pod(self.version)).encode())


def pod(version: int) -> dict[str, Any]:
    return {"metadata": {"name": "a", "namespace": "default", "uid": UID, "resourceVersion": str(version)}}


def passed_over(monkeypatch: pytest.MonkeyPatch, version: int) -> tuple[FakeClock, Member, Owed]:
    """The log has the pod at 25, its member at `version`."""
    monkeypatch.setattr(module, "FIRST", 0.002)
    monkeypatch.setattr(module, "LONGEST", 0.002)
    clock, member, owed = FakeClock(), Member(version), Owed()
    clock.members["west"] = member
    clock.log("west", pod(25))
    entry = clock.marker("west", "default", "a")
    assert entry is not None
    owed.add(clock, PODS.at(), entry)  # type: ignore[arg-type]
    assert owed.open
    return clock, member, owed


async def asked(member: Member, times: int) -> None:
    until = member.asked + times
    async with asyncio.timeout(10):
        while member.asked < until:  # noqa: ASYNC110 - the member tells nobody
            await asyncio.sleep(0.001)


async def ended(owed: Owed) -> None:
    async with asyncio.timeout(10):
        while owed._entries:  # noqa: ASYNC110 - nobody waits for that otherwise
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("version", [26, 0])
async def test_what_is_newer_on_the_member_is_waited_for(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    clock, member, owed = passed_over(monkeypatch, version)
    await asked(member, 4)
    assert owed.open
    clock.log("west", pod(26), delete=not version)
    assert not owed.open
    await ended(owed)
    assert clock.gaps == []


async def test_a_member_that_is_back_where_the_log_is_has_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, member, owed = passed_over(monkeypatch, 26)
    await asked(member, 2)
    assert clock.gaps == []
    member.version = 25
    await ended(owed)
    assert [cluster for cluster, _ in clock.gaps] == ["west"]


async def test_a_gap_that_cannot_be_opened_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, _, owed = passed_over(monkeypatch, 25)
    real, failed = clock.open_gap, 0

    async def open_gap(cluster: str) -> None:
        nonlocal failed
        if failed < 3:
            failed += 1
            raise StatusError(503, "ServiceUnavailable", "etcd is away")
        await real(cluster)

    monkeypatch.setattr(clock, "open_gap", open_gap)
    await ended(owed)
    assert failed == 3 and len(clock.gaps) == 1


async def test_nothing_is_asked_once_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, member, owed = passed_over(monkeypatch, 26)
    await asked(member, 1)
    await owed.close()
    before = member.asked
    entry = clock.marker("west", "default", "a")
    assert entry is not None
    owed.add(clock, PODS.at(), entry)  # type: ignore[arg-type]
    await asyncio.sleep(0.02)
    assert member.asked == before
