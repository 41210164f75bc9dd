"""`reclock top`: the clock's feeds, commits and watches, live."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from rich.live import Live
from rich.text import Text

from reclock.cli.api import Api, CliError
from reclock.cli.output import Format, console, show, table

PATH = "/reclock/top"
COLUMNS = (
    "RESOURCE", "CLUSTER", "STATE", "OBJECTS", "EVENTS/S", "WAITING", "LAG", "RELISTS", "WATCHERS", "SENT/S", "BYTES/S",
    "COMMIT", "BATCH",
)  # fmt: skip
EMPTY = "nothing is aggregated yet"
Answer = dict[str, Any]


@dataclass(slots=True)
class MemberView:
    """One member of a resource: `…PerSecond` between two looks, None where they cannot be told."""

    cluster: str
    state: str
    objects: int
    lagEvents: int
    lagSeconds: float
    eventsPerSecond: float | None
    deliveriesPerSecond: float | None
    bytesPerSecond: float | None
    relists: int
    gap: bool
    message: str


@dataclass(slots=True)
class ResourceView:
    """One resource: `commitSeconds` and `batch` are means between two looks, None without a commit."""

    resource: str
    leads: bool
    objects: int
    hidden: int
    logEntries: int
    windowRevisions: int
    watchers: int
    waiting: int
    commitsPerSecond: float | None
    commitSeconds: float | None
    batch: float | None
    members: list[MemberView] = field(default_factory=list)


@dataclass(slots=True)
class Top:
    """What the replica that answered has; `seconds` between the two looks (0: other replicas answered)."""

    replica: str
    time: str
    seconds: float
    resources: list[ResourceView]


def compare(before: Answer, now: Answer, only: str = "") -> Top:
    """Two answers of the front as rates and means. Sums of another replica, or of an earlier life, say nothing."""
    same = before["replica"] == now["replica"]
    seconds = (_time(now) - _time(before)).total_seconds() if same else 0.0
    earlier = {_key(one): one for one in before["resources"]} if seconds > 0 else {}
    resources = [
        _resource(earlier.get(_key(one)), one, seconds) for one in now["resources"] if only in ("", _key(one))
    ]
    return Top(now["replica"], now["time"], round(seconds, 3), resources)


def _time(answer: Answer) -> datetime:
    # Six digits at most: what Python 3.11 reads.
    whole, _, rest = answer["time"].removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{(rest or '0')[:6].ljust(6, '0')}+00:00")


def _key(one: Answer) -> str:
    group = one["resource"]["group"]
    return f"{one['resource']['resource']}.{group}" if group else str(one["resource"]["resource"])


def _seconds(text: str | None) -> float:
    return float((text or "0s").removesuffix("s"))


def _grown(before: Answer | None, now: Answer, name: str) -> int | None:
    if before is None:
        return None
    grown = int(now[name]) - int(before[name])
    return grown if grown >= 0 else None


def _rate(before: Answer | None, now: Answer, name: str, seconds: float) -> float | None:
    grown = _grown(before, now, name)
    return None if grown is None else round(grown / seconds, 2)


def _mean(before: Answer | None, now: Answer, name: str) -> float | None:
    """Of a sum of seconds per commit."""
    commits = _grown(before, now, "commits")
    if not commits or before is None:
        return None
    return round((_seconds(now.get(name)) - _seconds(before.get(name))) / commits, 6)


def _resource(before: Answer | None, now: Answer, seconds: float) -> ResourceView:
    commits, markers = _grown(before, now, "commits"), _grown(before, now, "committedMarkers")
    earlier = {one["cluster"]: one for one in before["feeds"]} if before else {}
    return ResourceView(
        _key(now), now["leads"], int(now["markers"]), int(now["clashes"]), int(now["logEntries"]),
        int(now["windowRevisions"]), int(now["watchers"]), int(now["waiting"]),
        _rate(before, now, "commits", seconds), _mean(before, now, "commitTime"),
        round(markers / commits, 2) if commits and markers is not None else None,
        [_member(earlier.get(one["cluster"]), one, seconds) for one in now["feeds"]],
    )  # fmt: skip


def _member(before: Answer | None, now: Answer, seconds: float) -> MemberView:
    # What waits now may have waited longer than what was committed meanwhile.
    lag = max(_seconds(now.get("lag")), _mean(before, now, "committedLag") or 0.0)
    return MemberView(
        now["cluster"], now["state"], int(now["markers"]), int(now["lagEvents"]), round(lag, 6),
        _rate(before, now, "events", seconds), _rate(before, now, "deliveries", seconds),
        _rate(before, now, "deliveredBytes", seconds), int(now["relists"]), now["gap"], now["message"],
    )  # fmt: skip


def rows(top: Top) -> list[tuple[str, ...]]:
    """A line for each resource, and one below it for each member."""
    lines: list[tuple[str, ...]] = []
    for one in top.resources:
        members = one.members
        lines.append((
            one.resource, "(all)", "leads" if one.leads else "follows", str(one.objects),
            _number(_sum(each.eventsPerSecond for each in members)), str(one.waiting),
            _duration(max((each.lagSeconds for each in members), default=0.0)), str(sum(each.relists for each in members)),
            str(one.watchers), _number(_sum(each.deliveriesPerSecond for each in members)),
            _number(_sum(each.bytesPerSecond for each in members)), _duration(one.commitSeconds),
            "-" if one.batch is None else f"{one.batch:.1f}",
        ))  # fmt: skip
        lines += [
            (
                "", each.cluster or "(host)", each.state + (" (gap)" if each.gap else ""), str(each.objects),
                _number(each.eventsPerSecond), str(each.lagEvents), _duration(each.lagSeconds), str(each.relists), "",
                _number(each.deliveriesPerSecond), _number(each.bytesPerSecond), "", "",
            )
            for each in members
        ]  # fmt: skip
    return lines


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("", "k", "M"):
        if value < 1000:
            return f"{value:.0f}{unit}" if value >= 10 or value == 0 else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.0f}G"


def _duration(seconds: float | None) -> str:
    if seconds is None or seconds <= 0:
        return "-"
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.1f}s"


def text(top: Top) -> str:
    """The table, and below it what is wrong with a member."""
    lines = [table(COLUMNS, rows(top)) if top.resources else EMPTY]
    lines += [
        f"{one.resource} of {each.cluster or 'the host'}: {each.message}"
        for one in top.resources for each in one.members if each.message
    ]  # fmt: skip
    if not top.seconds:
        lines.append("another replica of the aggregator answered: rates come with the next look at it")
    return "\n".join(lines)


async def top_once(api: Api, resource: str, interval: float, form: Format) -> None:
    """Two looks, `interval` seconds apart, and one table."""
    before = await api.call("GET", PATH)
    await asyncio.sleep(interval)
    found = compare(before, await api.call("GET", PATH), resource)
    _known(found, resource)
    if form is Format.table:
        print(text(found))
    else:
        show(asdict(found), form, (), (), "")


async def top_live(api: Api, resource: str, interval: float) -> None:
    """Until interrupted; one table after the other where this is no terminal."""
    before = await api.call("GET", PATH)
    _known(compare(before, before, resource), resource)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            await asyncio.sleep(interval)
            now = await api.call("GET", PATH)
            shown, before = text(compare(before, now, resource)), now
            if console.is_terminal:
                live.update(Text(shown, no_wrap=True, overflow="crop"), refresh=True)
            else:
                print(shown, flush=True)


def _known(top: Top, resource: str) -> None:
    if resource and not top.resources:
        raise CliError(f"{resource} is not aggregated; name it as `kubectl get apiaggregations` does, for example pods")
