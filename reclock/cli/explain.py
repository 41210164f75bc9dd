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
COLUMNS = ("CLUSTER", "REPLICAS", "COPY", "ELIGIBLE", "FILTER", "ASKED", "FREE", "FITS", "SCORE", "WHY")


async def explain(api: Api, target: str, namespace: str, form: Format) -> None:
    """Print one row per member: its score, or the first filter that keeps the workload away; and how its copy is doing."""
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
    show(answer, form, COLUMNS, rows(workload, verdicts), "the fleet has no members")


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
    status, owner = workload.get("status") or {}, workload["spec"]["owner"]
    placed = (status.get("placement") or {}).get("clusters") or []
    where = ", ".join(f"{one['name']} {one['replicas']}" if one.get("replicas") else one["name"] for one in placed)
    say(f"{owner['kind'].lower()}/{owner['name']} ({workload['metadata']['namespace']}): {where or 'placed nowhere'}")
    say(f"policy: {status.get('policy') or '-'}   attempts: {status.get('attempts', 0)}")
    for one in status.get("conditions") or []:
        say(f"{one['type']}={one['status']}: {one.get('message') or one.get('reason')}")


def rows(workload: dict[str, Any], verdicts: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The table. A cluster that has left the fleet has no verdict, but may have a copy yet."""
    copies = {one["cluster"]: one for one in (workload.get("status") or {}).get("copies") or []}
    table = [_row(one, copies.pop(one["cluster"], {})) for one in verdicts]
    return table + [_row({"cluster": name}, copy) for name, copy in sorted(copies.items())]


def _row(one: dict[str, Any], copy: dict[str, Any]) -> tuple[str, ...]:
    said = [text for text in (one.get("message"), copy.get("message")) if text]
    return (
        one["cluster"],
        str(one.get("replicas", 0)),
        copy.get("state") or "-",
        "yes" if one.get("eligible") else "no",
        one.get("filter") or "-",
        _amounts(one.get("asked")),
        _amounts(one.get("free")),
        str(one.get("fits", 0)),
        str(one.get("score", 0)) if one.get("eligible") else "-",
        "; ".join(said) or "-",
    )


def _amounts(amounts: dict[str, str] | None) -> str:
    return ",".join(f"{name}={amount}" for name, amount in sorted((amounts or {}).items())) or "-"
