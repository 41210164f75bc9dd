"""`reclock drain`: what is still on a cluster that is being emptied, and waiting for it to go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reclock.cli.api import GROUP, Api, CliError
from reclock.cli.output import condition, say, table

POLL = 1.0
COLUMNS = ("NAMESPACE", "WORKLOAD", "LEFT", "STATE", "REASON")
MOVING, STOPPING, STAYS, WAITING = "Moving", "Stopping", "Stays", "Waiting"
MADE_HERE = "reclock.dev/routed"
"""Label of objects that the front created on a member for somebody."""
FOR_GOOD = ("HasVolumes", "Tolerated")
"""Reasons that only a change of the policy takes away."""


@dataclass(frozen=True, slots=True)
class Left:
    """One workload that is still there."""

    namespace: str
    name: str
    replicas: str
    state: str
    reason: str
    for_good: bool = False

    @property
    def row(self) -> tuple[str, ...]:
        """Its line in the table."""
        return self.namespace, self.name, self.replicas, self.state, self.reason


def left_on(cluster: str, workloads: Iterable[Mapping[str, Any]]) -> list[Left]:
    """What is placed on the cluster or still runs there.

    Without DaemonSets, which leave with their cluster, and without what has ended: its pods stay for their logs.
    """
    found = (_left(cluster, dict(item)) for item in workloads)
    return sorted((one for one in found if one is not None), key=lambda one: one.row)


def _left(cluster: str, workload: dict[str, Any]) -> Left | None:
    owner, status = workload["spec"]["owner"], workload.get("status") or {}
    if owner["kind"] == "DaemonSet" or condition(workload, "Finished").get("status") == "True":
        return None
    placed = next((one for one in (status.get("placement") or {}).get("clusters") or [] if one["name"] == cluster), None)
    copy = next((one for one in status.get("copies") or [] if one["cluster"] == cluster), None)
    running = sum(int(split.get(cluster) or 0) for split in (status.get("divisions") or {}).values())
    if placed is None and copy is None and not running:
        return None
    state, reason, for_good = _state(workload, placed is not None, (copy or {}).get("state", ""), running)
    replicas = running or (placed or {}).get("replicas") or 0
    return Left(
        workload["metadata"]["namespace"], f"{owner['kind'].lower()}/{owner['name']}", str(replicas or "-"),
        state, reason, for_good,
    )  # fmt: skip


def _state(workload: dict[str, Any], placed: bool, copy: str, running: int) -> tuple[str, str, bool]:
    """(state, reason, whether it stays until a policy changes)."""
    if placed:
        blocked = condition(workload, "DrainBlocked")
        if blocked.get("status") == "True":
            return STAYS, f"{blocked['reason']}: {blocked.get('message', '')}", blocked["reason"] in FOR_GOOD
        return WAITING, "the scheduler has not looked at it yet", False
    if running:
        moving = condition(workload, "Moving")
        return MOVING, moving.get("message") or "its replicas are being placed elsewhere", False
    if copy == "Suspended":
        return copy, condition(workload, "Scheduled").get("message") or "", False
    if copy == "LeftBehind":
        return copy, "the cluster is not reachable", False
    return STOPPING, "its pods are being stopped", False


async def wait(api: Api, cluster: str, timeout: float) -> None:
    """Tell what happens until nothing is left. CliError when time is over, or nothing more can happen."""
    deadline = time.monotonic() + timeout
    known: dict[tuple[str, str], Left] = {}
    while True:
        left = left_on(cluster, await api.items(f"{GROUP}/workloads"))
        known = _tell(known, left)
        if not left:
            break
        if all(one.for_good for one in left):
            raise CliError(_remains(cluster, left, "stay until a policy lets them move"))
        if time.monotonic() > deadline:
            raise CliError(_remains(cluster, left, f"are still there after {timeout:g} s"))
        await asyncio.sleep(POLL)
    say(f"cluster {cluster} drained")
    for pod in await _by_hand(api, cluster):
        delete = f"kubectl -n {pod['namespace']} delete pod {pod['name']}"
        say(f"pod/{pod['name']} ({pod['namespace']}) stays: it was made directly, and is not moved; next step: {delete}")


async def _by_hand(api: Api, cluster: str) -> list[dict[str, Any]]:
    """Metadata of pods there that somebody made through the front, and that have not ended."""
    try:
        pods = await api.items("/api/v1/pods", labelSelector=MADE_HERE)
    except CliError as error:
        say(f"pods that were made directly cannot be shown: {error}")
        return []
    return [
        pod["metadata"] for pod in pods
        if pod["metadata"].get("annotations", {}).get("reclock.dev/cluster") == cluster
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]  # fmt: skip


def _tell(known: Mapping[tuple[str, str], Left], left: Iterable[Left]) -> dict[tuple[str, str], Left]:
    """Print a line for all that changed; returns what is known now."""
    now = {(one.namespace, one.name): one for one in left}
    for key, one in now.items():
        before = known.get(key)
        if before is None or (before.replicas, before.state) != (one.replicas, one.state):
            count = f" {one.replicas} left;" if one.replicas != "-" else ""
            say(f"{one.name} ({one.namespace}):{count} {one.state}: {one.reason}")
    for namespace, name in known.keys() - now.keys():
        say(f"{name} ({namespace}): gone")
    return now


def _remains(cluster: str, left: list[Left], why: str) -> str:
    return f"{len(left)} workloads on {cluster} {why}:\n{table(COLUMNS, [one.row for one in left])}"
