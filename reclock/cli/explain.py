"""`reclock explain KIND/NAME`: why a workload is where it is."""

from __future__ import annotations

from typing import Any

from reclock.cli.api import GROUP, Api, CliError
from reclock.cli.output import Format, say, show

KINDS = {
    "deployment": "Deployment", "deployments": "Deployment", "deploy": "Deployment",
    "replicaset": "ReplicaSet", "replicasets": "ReplicaSet", "rs": "ReplicaSet",
    "statefulset": "StatefulSet", "statefulsets": "StatefulSet", "sts": "StatefulSet",
    "daemonset": "DaemonSet", "daemonsets": "DaemonSet", "ds": "DaemonSet",
    "job": "Job", "jobs": "Job",
}  # fmt: skip
COLUMNS = ("CLUSTER", "REPLICAS", "ELIGIBLE", "FILTER", "ASKED", "FREE", "FITS", "SCORE", "WHY")


async def explain(api: Api, target: str, namespace: str, form: Format) -> None:
    """Print one row per member: its score, or the first filter that keeps the workload away."""
    kind, slash, name = target.partition("/")
    if name and kind.lower() in ("pod", "pods", "po"):
        raise CliError(f"a pod is where it was made (kubectl get pod {name} -o wide); what owns it can be explained")
    if not slash or not name or kind.lower() not in KINDS:
        raise CliError(f"{target!r} is no KIND/NAME; kinds: {', '.join(sorted(set(KINDS.values())))}")
    workload = await _workload(api, KINDS[kind.lower()], namespace, name)
    path = f"{GROUP}/namespaces/{namespace}/workloads/{workload['metadata']['name']}/explain"
    answer = await api.call("GET", path)
    verdicts = answer.get("verdicts", [])
    if form is Format.table:
        _head(workload)
    show(answer, form, COLUMNS, [_row(one) for one in verdicts], "the fleet has no members")


async def _workload(api: Api, kind: str, namespace: str, name: str) -> dict[str, Any]:
    for workload in await api.items(f"{GROUP}/namespaces/{namespace}/workloads"):
        owner = workload["spec"]["owner"]
        if (owner["kind"], owner["name"]) == (kind, name):
            return workload
    raise CliError(
        f"no workload stands for {kind.lower()}/{name} in namespace {namespace}: "
        f"is the object there (kubectl -n {namespace} get {kind.lower()} {name}), and is the reconciler up?"
    )


def _head(workload: dict[str, Any]) -> None:
    status = workload.get("status") or {}
    say(f"policy: {status.get('policy') or '-'}   attempts: {status.get('attempts', 0)}")
    for one in status.get("conditions") or []:
        say(f"{one['type']}={one['status']}: {one.get('message') or one.get('reason')}")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        one["cluster"],
        str(one.get("replicas", 0)),
        "yes" if one.get("eligible") else "no",
        one.get("filter") or "-",
        _amounts(one.get("asked")),
        _amounts(one.get("free")),
        str(one.get("fits", 0)),
        str(one.get("score", 0)) if one.get("eligible") else "-",
        one.get("message") or "-",
    )


def _amounts(amounts: dict[str, str] | None) -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted((amounts or {}).items())) or "-"
