"""`reclock clusters`, `cordon`, `uncordon`, `forget`, and how a drain starts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from reclock.cli.api import GROUP, Api, CliError
from reclock.cli.output import Format, age, condition, console, show

MAINTENANCE = "reclock.dev/maintenance"
COLUMNS = ("NAME", "READY", "VERSION", "PROVIDER", "TAINTS", "SERVER", "AGE", "REASON")


async def clusters(api: Api, form: Format) -> None:
    """Print the fleet, and what keeps a source of clusters from being read."""
    items = await api.items(f"{GROUP}/clusters")
    sources = (await api.call("GET", "/reclock/sources"))["problems"]
    data = {"clusters": items, "problems": sources}
    show(
        data,
        form,
        COLUMNS,
        [_row(item) for item in items],
        "no clusters yet: tell discovery about a kubeconfig",
    )
    if form is Format.table:
        for problem in sources:
            console.print(
                f"[yellow]{problem['provider']}: {problem['source']}: {problem['message']} (since {age(problem['since'])})[/]",
                highlight=False,
            )


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    status = item.get("status") or {}
    ready = condition(item, "Ready")
    bad = [one for one in status.get("conditions") or [] if one.get("status") != "True"]
    taints = [f"{one['key']}:{one['effect']}" for one in (item.get("spec") or {}).get("taints") or []]
    reason = "; ".join(
        f"{one['reason']}: {one['message']} ({age(one.get('lastTransitionTime'))})" for one in bad
    )
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


async def cordon(api: Api, name: str, effect: str) -> None:
    """Keep new work away (NoSchedule), or move what is there as well (NoExecute)."""
    await _retaint(api, name, effect)
    word = "drained" if effect == "NoExecute" else "cordoned"
    console.print(f"cluster {name} {word}" if effect == "NoSchedule" else f"cluster {name} is being {word}")


async def uncordon(api: Api, name: str) -> None:
    """Let work come again."""
    await _retaint(api, name, None)
    console.print(f"cluster {name} uncordoned")


async def forget(api: Api, name: str) -> None:
    """State that a lost cluster will not come back: what must not run twice may then move."""
    await api.call("POST", f"{GROUP}/clusters/{name}/forget", body={}, kind="application/json")
    console.print(f"cluster {name} forgotten: its workloads move to others")


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
