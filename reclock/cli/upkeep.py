"""`reclock markers stats|verify|rebuild|defragment`: what the front does line by line, shown as it goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reclock.cli.api import Api, CliError
from reclock.cli.output import Format, console, page, say, show

ROOT = "/reclock/markers/"
ETCD = ("ETCD", "VERSION", "SIZE", "IN USE", "LEADER", "PROBLEM")
RESOURCES = (
    "RESOURCE", "OBJECTS", "HIDDEN", "KEYS", "BYTES", "LOG", "WINDOW REVISIONS", "REVISION", "HEAD", "MEMBERS",
)  # fmt: skip
DIFFERENCES = ("RESOURCE", "CLUSTER", "NAMESPACE", "NAME", "WHAT", "MESSAGE")
Line = dict[str, Any]


async def stats(api: Api, resource: str, form: Format) -> None:
    """Figures per etcd and per resource."""
    lines: list[Line] = []
    with console.status("counting …") as status:
        async for line in api.lines("GET", f"{ROOT}stats", _query(resource)):
            lines.append(line)
            status.update(f"counting … {line.get('resource', '')}")
    etcds = [one for one in lines if one["kind"] == "Etcd"]
    resources = [one for one in lines if one["kind"] == "Resource"]
    if form is not Format.table:
        show({"fleetId": lines[0]["fleetId"], "etcds": etcds, "resources": resources}, form, (), (), "")
        return
    show(etcds, form, ETCD, [_endpoint(one) for etcd in etcds for one in etcd["endpoints"]], "no etcd")
    print()
    show(resources, form, RESOURCES, [_resource(one) for one in resources], "nothing is aggregated yet")
    for text in [etcd["alarm"] for etcd in etcds if etcd["alarm"]]:
        say(text, "red")


async def verify(api: Api, resource: str, form: Format) -> bool:
    """Print what differs; True when nothing does and every cluster could be asked."""
    found: list[Line] = []
    compared: list[Line] = []
    with console.status("comparing …") as status:
        async for line in api.lines("GET", f"{ROOT}verify", _query(resource)):
            if line["kind"] == "Difference":
                found.append(line)
            elif line["kind"] == "Compared":
                compared.append(line)
            status.update(
                f"comparing … {line['resource']}, {sum(one['objects'] for one in compared)} objects, {len(found)} differ"
            )
    away = [one for one in compared if one["problem"]]
    if form is not Format.table:
        show({"differences": found, "compared": compared}, form, (), (), "")
    elif found:
        rows = [
            (
                one["resource"], one["cluster"] or "(host)", one["namespace"] or "-", one["name"], one["what"],
                one["message"],
            )
            for one in found
        ]  # fmt: skip
        show(found, form, DIFFERENCES, rows, "")
    if form is Format.table:
        for one in away:
            say(f"{one['resource']} of {one['cluster'] or 'the host'} was not compared: {one['problem']}", "yellow")
        members = len({one["cluster"] for one in compared} - {"(etcd)"})
        objects = sum(one["objects"] for one in compared if one["cluster"] != "(etcd)")
        say(f"{objects} objects of {members} clusters compared, {len(found)} differ")
    return not found and not away


async def rebuild(api: Api, agreed: Callable[[str], bool]) -> None:
    """Ask, rebuild, and show how far it is."""
    fleet = ""
    async for line in api.lines("GET", f"{ROOT}fleet"):
        fleet = line["fleetId"]
    if not agreed(fleet):
        raise CliError("nothing was changed")
    last: Line = {}
    with console.status("rebuilding …") as status:
        async for line in api.lines("POST", f"{ROOT}rebuild", {"fleetId": fleet}):
            last = line
            waiting = "; ".join(line["waiting"][:3])
            done = f"rebuilding … {line['done']} of {line['resources']} resources, {line['markers']} markers"
            status.update(page(done + (f"; waiting for {waiting}" if waiting else "")))
    say(f"{last['markers']} markers of {last['resources']} resources rebuilt")


async def defragment(api: Api) -> None:
    """One line per endpoint as it is done."""
    with console.status("defragmenting …"):
        async for line in api.lines("POST", f"{ROOT}defragment"):
            if line["kind"] == "Disarmed":
                say("the alarm NOSPACE is off")
                continue
            before, after = line["before"], line["after"]
            text = f"{before['address']}: {_bytes(before['sizeBytes'])} -> {_bytes(after['sizeBytes'])}"
            say(text)


def _query(resource: str) -> dict[str, str] | None:
    return {"resource": resource} if resource else None


def _endpoint(one: Line) -> tuple[str, ...]:
    return (
        one["address"], one["version"] or "-", _bytes(one["sizeBytes"]), _bytes(one["usedBytes"]),
        "yes" if one["leader"] else "", ", ".join(one["alarms"]) or one["problem"],
    )  # fmt: skip


def _resource(one: Line) -> tuple[str, ...]:
    states = [member["state"] for member in one["members"]]
    live = sum(state in ("Live", "NoType") for state in states)
    return (
        one["resource"], str(one["objects"]), str(one["hidden"]), str(one["keys"]), _bytes(one["bytes"]),
        str(one["logEntries"]), str(one["windowRevisions"]), str(one["revision"]), str(one["head"]),
        f"{live}/{len(states)}",
    )  # fmt: skip


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
