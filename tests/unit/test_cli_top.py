"""`reclock top`: rates and means of two answers, and how they are printed."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest
from rich.console import Console

from reclock.cli import top
from reclock.cli.api import CliError
from reclock.cli.output import Format


def answer(second: int, *, replica: str = "a", events: int = 0, **feed: Any) -> dict[str, Any]:
    east = {
        "cluster": "east", "state": "Live", "position": "9", "gap": False, "message": "", "markers": "7",
        "lagEvents": "0", "events": str(events), "commits": str(events // 2), "relists": "1",
        "committedLag": f"{events * 0.001:.6f}s", "lag": "0s",
        "deliveries": str(events * 10), "deliveredBytes": str(events * 5000), **feed,
    }  # fmt: skip
    pods = {
        "resource": {"group": "", "resource": "pods"}, "leads": True, "markers": "7", "clashes": "1",
        "logEntries": "3", "windowRevisions": "40", "watchers": "10", "waiting": "0", "commits": str(events // 2),
        "committedMarkers": str(events), "commitTime": f"{events * 0.002:.6f}s", "feeds": [east],
    }  # fmt: skip
    return {"replica": replica, "time": f"2026-01-01T00:00:{second:02d}.123456789Z", "resources": [pods]}


def test_rates_lie_between_two_looks() -> None:
    seen = top.compare(answer(0, events=100), answer(2, events=140))
    [pods] = seen.resources
    [east] = pods.members
    assert (seen.seconds, east.eventsPerSecond, east.deliveriesPerSecond, east.bytesPerSecond) == (2.0, 20, 200, 100_000)
    assert (pods.commitsPerSecond, pods.commitSeconds, pods.batch) == (10, 0.004, 2)
    assert east.lagSeconds == 0.002, "mean of the commits between the looks"
    total, member = top.rows(seen)
    assert total[:5] == ("pods", "(all)", "leads", "7", "20") and "4.0ms" in total
    assert member[1:5] == ("east", "Live", "7", "20") and "100k" in member


def test_what_waits_now_is_lag_though_nothing_was_committed() -> None:
    seen = top.compare(answer(0, events=4), answer(1, events=4, lag="3.5s", lagEvents="12"))
    [east] = seen.resources[0].members
    assert east.lagSeconds == 3.5 and east.lagEvents == 12 and seen.resources[0].commitSeconds is None


@pytest.mark.parametrize("before", [answer(0, replica="b", events=9), answer(3, events=9), answer(0, events=500)])
def test_sums_of_another_life_are_no_rates(before: dict[str, Any]) -> None:
    seen = top.compare(before, answer(3, events=12))
    assert seen.resources[0].members[0].eventsPerSecond is None
    assert top.rows(seen)[0][4] == "-"


def test_a_member_that_is_away_says_why() -> None:
    text = top.text(top.compare(answer(0), answer(1, state="Unreachable", message="connection refused", gap=True)))
    assert "Unreachable (gap)" in text and "pods of east: connection refused" in text


class FakeApi:
    """Answers one look after the other."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def call(self, method: str, path: str) -> Any:
        self.asked.append(f"{method} {path}")
        return self.answers.pop(0)


def test_json_has_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    api = FakeApi(answer(0, events=100), answer(1, events=110))
    asyncio.run(top.top_once(api, "pods", 0.0, Format.json))  # type: ignore[arg-type]
    [pods] = json.loads(capsys.readouterr().out)["resources"]
    assert pods["members"][0]["eventsPerSecond"] == 10.0 and pods["hidden"] == 1
    assert api.asked == ["GET /reclock/top"] * 2


def test_a_resource_that_is_not_aggregated_is_an_error() -> None:
    api = FakeApi(answer(0), answer(1))
    with pytest.raises(CliError, match="secrets is not aggregated"):
        asyncio.run(top.top_once(api, "secrets", 0.0, Format.table))  # type: ignore[arg-type]


class Terminal(io.StringIO):
    """Takes what a terminal would show."""

    def isatty(self) -> bool:
        return True


def test_the_live_view_shows_messages_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(top, "console", Console(file=screen, force_terminal=True, width=200, height=40))
    api = FakeApi(answer(0), answer(1, events=5), answer(2, events=9, message="[/odd] [Errno 111]"))
    with pytest.raises(IndexError):  # the server has no more answers
        asyncio.run(top.top_live(api, "", 0.0))  # type: ignore[arg-type]
    shown = screen.getvalue()
    assert shown.count("RESOURCE") >= 2 and "pods of east: [/odd] [Errno 111]" in shown
