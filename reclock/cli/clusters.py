"""`reclock clusters` (once, live, one of them), `cordon`, `uncordon`, `forget`, and how a drain starts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from rich.live import Live

from reclock.cli.api import GROUP, Api, CliError
from reclock.cli.output import Format, age, condition, console, page, say, show, table

MAINTENANCE = "reclock.dev/maintenance"
COLUMNS = ("NAME", "READY", "VERSION", "PROVIDER", "TAINTS", "SERVER", "AGE", "REASON")


EMPTY = "no clusters yet: tell discovery about a kubeconfig"


async def clusters(api: Api, form: Format) -> None:
    """Print the fleet, and what keeps a source of clusters from being read."""
    items, sources = await _fleet(api)
    data = {"clusters": items, "problems": sources}
    show(data, form, COLUMNS, [_row(item) for item in items], EMPTY)
    if form is Format.table:
        for note in map(_note, sources):
            say(note, "yellow")


async def watch(api: Api, interval: float) -> None:
    """Show the fleet until interrupted; one table after the other where this is no terminal."""
    if not console.is_terminal:
        while True:
            print(await _page(api), flush=True)
            await asyncio.sleep(interval)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(page(await _page(api)), refresh=True)
            await asyncio.sleep(interval)


async def _page(api: Api) -> str:
    """The fleet as text; a front that is away for a moment is said, and asked again."""
    try:
        items, sources = await _fleet(api)
    except CliError as error:
        return f"{datetime.now():%H:%M:%S} {error}"
    rows = [_row(item) for item in items]
    return "\n".join([table(COLUMNS, rows) if rows else EMPTY, *map(_note, sources)])


async def _fleet(api: Api) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    items, sources = await asyncio.gather(api.items(f"{GROUP}/clusters"), _problems(api))
    return items, sources


async def _problems(api: Api) -> list[dict[str, Any]]:
    """Sources that cannot be read; that nobody can say is one of them, and does not keep the clusters from being shown."""
    try:
        problems: list[dict[str, Any]] = (await api.call("GET", "/reclock/sources"))["problems"]
    except CliError as error:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return [{"provider": "discovery", "source": "shown is what was known last", "message": str(error), "since": now}]
    return problems


def _note(problem: dict[str, Any]) -> str:
    return f"{problem['provider']}: {problem['source']}: {problem['message']} (since {age(problem['since'])})"


async def describe(api: Api, name: str, form: Format) -> None:
    """Print all that is known about one cluster: where it is from, its health, its last changes."""
    item, found = await asyncio.gather(api.call("GET", f"{GROUP}/clusters/{name}"), _problems(api))
    status = item.get("status") or {}
    source = status.get("source", "")
    problems = [one for one in found if (source and one["source"] == source) or one["provider"] == "discovery"]
    if form is not Format.table:
        show({"cluster": item, "problems": problems}, form, (), (), "")
        return
    facts = _facts(item)
    print(table(facts[0], facts[1:]))
    conditions = [_condition_row(one) for one in status.get("conditions") or []]
    history = [_change_row(one) for one in reversed(status.get("history") or [])]
    for title, columns, rows in (
        ("Conditions", ("TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"), conditions),
        ("Last changes", ("AGO", "TYPE", "STATUS", "REASON", "MESSAGE"), history),
    ):
        print(f"\n{title}:\n{table(columns, rows) if rows else 'none'}")
    for note in map(_note, problems):
        say(note, "yellow")


def _facts(item: dict[str, Any]) -> list[tuple[str, ...]]:
    metadata, status = item["metadata"], item.get("status") or {}
    latencies = status.get("latencies") or {}
    latency = "-"
    if latencies:
        latency = f"p50 {latencies['p50']}, p99 {latencies['p99']} over {latencies['samples']} probes"
    taints = (item.get("spec") or {}).get("taints") or []
    facts = {
        "Name": metadata["name"], "Provider": status.get("provider"), "Source": status.get("source"),
        "Server": status.get("server"), "Uid": status.get("uid"), "Version": status.get("kubeVersion"),
        "Labels": ", ".join(f"{key}={value}" for key, value in sorted((metadata.get("labels") or {}).items())),
        "Taints": ", ".join(f"{one['key']}:{one['effect']} ({age(one.get('timeAdded'))})" for one in taints),
        "Latency": latency, "Engaged": _ago(status.get("engagedAt")), "Unreachable": _ago(status.get("unreachableSince")),
        "Leaving": _ago(status.get("leavingSince")), "Forgotten": "yes" if status.get("forgotten") else "",
    }  # fmt: skip
    return [(f"{key}:", str(value)) for key, value in facts.items() if value]


def _ago(stamp: str | None) -> str:
    return f"{age(stamp)} ago ({stamp})" if stamp else ""


def _condition_row(one: dict[str, Any]) -> tuple[str, ...]:
    return one["type"], one["status"], age(one.get("lastTransitionTime")), one.get("reason", ""), one.get("message", "")


def _change_row(one: dict[str, Any]) -> tuple[str, ...]:
    return age(one["time"]), one["type"], one["status"], one.get("reason", ""), one.get("message", "")


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    status = item.get("status") or {}
    ready = condition(item, "Ready")
    bad = [one for one in status.get("conditions") or [] if one.get("status") != "True"]
    told = [one for one in bad if one.get("message")] or bad  # the others follow from these
    taints = [f"{one['key']}:{one['effect']}" for one in (item.get("spec") or {}).get("taints") or []]
    reason = "; ".join(f"{_why(one)} ({age(one.get('lastTransitionTime'))})" for one in told)
    return (
        item["metadata"]["name"],
        ready.get("status", "Unknown"),
        status.get("kubeVersion", "-"),
        status.get("provider", "-"),
        ",".join(taints) or "-",
        status.get("server", "-"),
        age(item["metadata"].get("creationTimestamp")),
        reason or "-",
    )


def _why(one: dict[str, Any]) -> str:
    return f"{one['reason']}: {one['message']}" if one.get("message") else str(one["reason"])


async def cordon(api: Api, name: str, effect: str) -> None:
    """Keep new work away (NoSchedule), or move what is there as well (NoExecute)."""
    await _retaint(api, name, effect)
    word = "drained" if effect == "NoExecute" else "cordoned"
    say(f"cluster {name} {word}" if effect == "NoSchedule" else f"cluster {name} is being {word}")


async def uncordon(api: Api, name: str) -> None:
    """Let work come again."""
    await _retaint(api, name, None)
    say(f"cluster {name} uncordoned")


async def forget(api: Api, name: str) -> None:
    """State that a lost cluster will not come back: what must not run twice may then move."""
    await api.call("POST", f"{GROUP}/clusters/{name}/forget", body={}, kind="application/json")
    say(f"cluster {name} forgotten: its workloads move to others")


async def _retaint(api: Api, name: str, effect: str | None) -> None:
    path = f"{GROUP}/clusters/{name}"
    for _ in range(5):
        cluster = await api.call("GET", path)
        before = (cluster.get("spec") or {}).get("taints") or []
        taints = [one for one in before if one["key"] != MAINTENANCE]
        if effect and any(one["key"] == MAINTENANCE and one.get("effect") == effect for one in before):
            return  # since when it is so decides how long tolerations hold
        if effect:
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            taints.append({"key": MAINTENANCE, "effect": effect, "timeAdded": stamp})
        version = cluster["metadata"]["resourceVersion"]
        try:
            await api.call(
                "PATCH", path, body={"metadata": {"resourceVersion": version}, "spec": {"taints": taints}}
            )
        except CliError as error:
            if "has been modified" not in str(error):
                raise
        else:
            return
    raise CliError(f"cluster {name} keeps changing: try again")
