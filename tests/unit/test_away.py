"""Clusters that are known not to answer: refused at once, in words that say which and why; calls to them end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from kube_fake import KubeFake

from services.aggregator import away
from services.aggregator.away import WhileAnswering, require_answering, require_member
from services.aggregator.front.errors import response
from services.common.errors import MemberAway, MemberUnreachable, StatusError, from_client_error
from services.common.fleet import Member
from services.common.kube import look
from services.common.kube.client import KubeClient


@pytest.fixture
async def kube() -> AsyncIterator[KubeFake]:
    async with KubeFake() as kube:
        yield kube


@pytest.fixture
async def member(kube: KubeFake) -> AsyncIterator[Member]:
    client = await KubeClient.connect(kube.kubeconfig(), name="east")
    yield Member("east", client=client, unreachable_since=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    await client.close()


def seen(member: Member, state: str = "Unreachable") -> Any:
    return SimpleNamespace(cluster=member.name, client=member.client, state=state, member=member)


async def test_one_that_answers_all_the_same_is_asked(kube: KubeFake, member: Member) -> None:
    await require_member(member)
    await require_answering(seen(member))
    assert kube.requests == [("GET", "/version")] * 2


async def test_one_that_is_not_known_to_be_away_costs_nothing(kube: KubeFake, member: Member) -> None:
    member.reachable = True
    await kube.stop()
    await require_member(member)
    await require_answering(seen(member, "Live"))
    assert not kube.requests


async def test_the_refusal_says_which_since_when_and_why(kube: KubeFake, member: Member) -> None:
    await kube.stop()
    for refused in (require_member(member), require_answering(seen(member))):
        with pytest.raises(MemberAway) as told:
            await refused
        assert told.value.message == "cluster east cannot be reached since 2026-01-02T03:04:05Z: cannot connect: Connection refused"
        assert told.value.code == 503 and told.value.unsent


async def test_many_who_ask_of_one_that_hangs_share_one_question(
    kube: KubeFake, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "LOOK", 0.05)
    asked = asyncio.Semaphore(0)

    async def never() -> None:
        asked.release()
        await asyncio.Event().wait()

    member.client.look = look.Look(never, member.client.looking_at)
    told = await asyncio.gather(*(require_member(member) for _ in range(50)), return_exceptions=True)
    assert {str(error) for error in told} == {"cluster east cannot be reached since 2026-01-02T03:04:05Z: no answer in time"}
    with pytest.raises(MemberAway):  # from memory
        await require_member(member)
    assert asked._value == 1
    monkeypatch.setattr(look, "BELIEVED", 0.0)
    with pytest.raises(MemberAway):
        await require_member(member)
    assert asked._value == 2


async def test_a_call_ends_when_its_cluster_goes_away(
    kube: KubeFake, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(away, "RECONSIDER", 0.02)
    member.reachable = True

    async def hangs() -> None:
        async with WhileAnswering(member.client, lambda: not member.reachable, "PATCH"):
            await asyncio.Event().wait()

    task = asyncio.create_task(hangs())
    await asyncio.sleep(0.1)
    assert not task.done()
    member.reachable = False
    await asyncio.sleep(0.1)
    assert not task.done(), "it answers, whatever is known of it"
    await kube.stop()
    with pytest.raises(MemberUnreachable, match="whether it did this is not known") as told:
        await task
    assert not told.value.unsent and not isinstance(told.value, MemberAway)


async def test_what_was_answered_may_take_its_time(
    kube: KubeFake, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(away, "RECONSIDER", 0.01)
    await kube.stop()
    for pause in (0.0, 0.05):  # before the first look, and during it
        member.client.look = look.Look(asyncio.Event().wait, "east")
        async with WhileAnswering(member.client, lambda: True, "GET") as waiting:
            await asyncio.sleep(pause)
            waiting.answered()
            await asyncio.sleep(0.1)


async def test_errors_of_a_call_are_its_own(member: Member) -> None:
    for error in (StatusError(409), TimeoutError("its own"), asyncio.CancelledError()):
        with pytest.raises(type(error)) as told:
            async with WhileAnswering(member.client, lambda: True, "GET"):
                raise error
        assert told.value is error


def test_client_go_repeats_only_what_was_not_sent_and_may_pass() -> None:
    """It repeats ten times where it reads a number; a date it does not read."""
    refused = from_client_error(ConnectionRefusedError(111, "refused"), "cluster east: GET /x")
    assert response(refused).headers["Retry-After"] == "1"
    for error in (
        MemberAway("cluster east cannot be reached"),
        from_client_error(TimeoutError(), "cluster east: PATCH /x"),
        from_client_error(aiohttp.ServerDisconnectedError(), "cluster east: PATCH /x"),
    ):
        answer = response(error)
        assert answer.status == 503 and parsedate_to_datetime(answer.headers["Retry-After"]) is not None
        assert json.loads(answer.body)["details"]["retryAfterSeconds"] == error.retry_after  # type: ignore[arg-type]
