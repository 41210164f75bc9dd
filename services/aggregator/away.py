"""Clusters that are known not to answer: who asks for something there is told at once, and not after a time-out.

What discovery, or the resource's own feed, knows may be of a while ago, and discovery may be away itself: so the cluster
is asked once more, shortly, before anybody is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Protocol

from services.common.errors import MemberAway, MemberUnreachable, StatusError
from services.common.fleet import Member
from services.common.kube.client import KubeClient

RECONSIDER = 2.0
"""Seconds of a call after each of which it is looked whether its cluster is still there."""


class Asked(Protocol):
    """A cluster as a resource's clock sees it (`MemberState`)."""

    cluster: str

    @property
    def client(self) -> KubeClient: ...

    @property
    def state(self) -> str: ...


async def require_answering(asked: Asked) -> None:
    """MemberAway where the cluster is known to be away and does not answer now either."""
    if asked.state == "Unreachable" and (error := await asked.client.look()) is not None:
        raise away(asked.client, error, _since(asked))


async def require_member(member: Member) -> None:
    """The same of a cluster of which only discovery speaks."""
    if not member.reachable and (error := await member.client.look()) is not None:
        raise away(member.client, error, member.unreachable_since)


class WhileAnswering:
    """`async with`: MemberUnreachable soon after the cluster of what is awaited inside went away, until `answered`: the
    limits of calls themselves are long ones, or none.

    `known` says whether the cluster is known to be away. Costs a timer for calls that are short.
    """

    def __init__(self, client: KubeClient, known: Callable[[], bool], method: str) -> None:
        self._client, self._known, self._method = client, known, method
        self._scope = asyncio.timeout(None)
        self._watch: asyncio.Task[None] | None = None
        self._gone: MemberUnreachable | None = None

    async def __aenter__(self) -> WhileAnswering:
        await self._scope.__aenter__()
        self._timer = asyncio.get_running_loop().call_later(RECONSIDER, self._begin)
        return self

    def _begin(self) -> None:
        self._watch = asyncio.create_task(self._look(), name=f"away/{self._client.label}")

    async def _look(self) -> None:
        while True:
            if self._known() and (error := await self._client.look()) is not None:
                break
            await asyncio.sleep(RECONSIDER)
        doubt = "" if self._method in ("GET", "HEAD") else "; whether it did this is not known"
        self._gone = MemberUnreachable(away(self._client, error).message + doubt)
        self._scope.reschedule(0)

    def answered(self) -> None:
        """From now on it may take its time."""
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        if not self._scope.expired():
            self._scope.reschedule(None)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.answered()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._gone is None:
                raise
            raise self._gone from None


def away(client: KubeClient, error: StatusError, since: datetime | None = None) -> MemberAway:
    """The refusal: which cluster, since when, and why."""
    when = f" since {since:%Y-%m-%dT%H:%M:%SZ}" if since is not None else ""
    return MemberAway(f"{client.label} cannot be reached{when}: {error.message.removeprefix(client.looking_at + ': ')}")


def _since(asked: Asked) -> datetime | None:
    member = getattr(asked, "member", None)
    return member.unreachable_since if isinstance(member, Member) else None
