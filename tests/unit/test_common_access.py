"""Who a token is of: what the host is asked, and how often at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.common import access
from services.common.access import Access
from services.common.errors import StatusError
from services.common.kube import reviews as kube_reviews
from services.common.kube.reviews import TOGETHER, User


class Host:
    """Answers no review before it is let; notes how many wait."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.asked: list[str] = []
        self.waiting: dict[str, int] = {"TokenReview": 0, "SubjectAccessReview": 0}

    async def create(self, resource: Any, namespace: None, body: dict[str, Any]) -> dict[str, Any]:
        self.waiting[resource.kind] += 1
        try:
            await self.let.wait()
        finally:
            self.waiting[resource.kind] -= 1
        if resource.kind == "SubjectAccessReview":
            return {"status": {"allowed": True}}
        token = body["spec"]["token"]
        self.asked.append(token)
        return {"status": {"authenticated": token == "good", "user": {"username": "ada"}}}


async def ticks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_tokens_of_strangers_queue() -> None:
    host = Host()
    judge = Access(host)  # type: ignore[arg-type]
    bad = [asyncio.create_task(judge.by_token(f"bad{number}")) for number in range(4 * TOGETHER)]
    good = asyncio.create_task(judge.by_token("good"))
    known = asyncio.create_task(judge.require(User("eve"), access.Attributes("get", resource="pods")))
    await ticks()
    assert host.waiting == {"TokenReview": TOGETHER, "SubjectAccessReview": 1}
    host.let.set()
    assert (await good).name == "ada"
    await known
    refusals = await asyncio.gather(*bad, return_exceptions=True)
    assert {error.code for error in refusals if isinstance(error, StatusError)} == {401}
    assert len(host.asked) == 4 * TOGETHER + 1


async def test_who_queues_too_long_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves the queue: the turn goes to those who come later."""
    monkeypatch.setattr(kube_reviews, "TIMEOUT", 0.05)
    host = Host()
    judge = Access(host)  # type: ignore[arg-type]
    late = await asyncio.gather(
        *(judge.by_token(f"bad{number}") for number in range(2 * TOGETHER)), return_exceptions=True
    )
    assert {error.code for error in late if isinstance(error, StatusError)} == {503}
    host.let.set()
    assert (await judge.by_token("good")).name == "ada"
