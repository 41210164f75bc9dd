"""When a watch is doubted, and how long what gets no bookmarks is watched."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from services.aggregator.clock import overdue
from services.aggregator.clock.metadata import WATCH_SILENCE, MetadataClient
from services.aggregator.clock.overdue import Hearing
from services.aggregator.reads.codec import JSON
from services.aggregator.reads.member_stream import SILENCE, MemberStream, StreamOptions
from services.aggregator.reads.table import Columns
from services.common.errors import StatusError
from services.common.kube.resource import EVENTS, PODS, Resource


async def test_a_watch_is_opened_anew_for_its_silence_and_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now = 1000.0
    monkeypatch.setattr(loop, "time", lambda: now)
    hearing = Hearing()
    hearing.heard()
    assert not hearing.renews(), "something came just now"
    now += overdue.LATE
    assert hearing.renews() and hearing.fresh(1.0) == 1.0
    now += overdue.LATE
    assert hearing.fresh(1.0) == 0.0 and not hearing.renews(), "it was just opened anew"
    hearing.heard()
    now += overdue.EVERY
    assert hearing.renews()


class Asked:
    """A client that notes what it is asked for, and has nothing."""

    def __init__(self) -> None:
        self.seconds: list[int] = []

    def stream(self, method: str, path: str, *, query: dict[str, Any], **_: Any) -> Any:
        self.seconds.append(int(query["timeoutSeconds"]))
        raise StatusError(503, "ServiceUnavailable", "no")


@pytest.mark.parametrize(
    ("resource", "marked"),
    [(EVENTS, False), (Resource("events.k8s.io", "v1", "events", "Event"), False), (PODS, True),
     (Resource("example.com", "v1", "events"), True)],
)  # fmt: skip
async def test_what_gets_no_bookmarks_is_watched_for_less_than_its_silence_may_last(resource: Resource, marked: bool) -> None:
    client = Asked()
    feed = MetadataClient(cast(Any, client), resource, "east")
    with pytest.raises(StatusError):
        async for _ in feed.watch("life/0", 5):
            raise AssertionError("it has nothing")
    stream = MemberStream(
        "east", "life/0", cast(Any, client), StreamOptions(resource.path(), "", "", "", False, "", "", JSON, resource.marked),
        Columns(), start=5, keep=lambda payload, listed: False, pause=lambda one: None,
    )  # fmt: skip
    await asyncio.sleep(0)  # its task has begun
    await stream.close()
    for seconds, silence in zip(client.seconds, (WATCH_SILENCE, SILENCE), strict=True):
        assert (seconds > silence) is marked
        assert marked or seconds < silence - 5
