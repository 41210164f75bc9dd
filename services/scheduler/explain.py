"""Why a workload is where it is, or what keeps it away: one verdict per member."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from services.scheduler.dispatch import ask_verdict, without_weight
from services.scheduler.engine import Engine
from services.scheduler.fleet import MemberView
from services.scheduler.member import PodSets
from services.scheduler.policy import STATIC_WEIGHT, Policy
from services.scheduler.verdict import CAPACITY, Verdict
from services.scheduler.workload import DIVIDED, SINGLE, Workload
from services.scheduler.writing import conflicts

LIMIT = 3.0
ALIASES = {
    "deploy": "Deployment", "deployment": "Deployment", "deployments": "Deployment",
    "rs": "ReplicaSet", "replicaset": "ReplicaSet", "replicasets": "ReplicaSet",
    "sts": "StatefulSet", "statefulset": "StatefulSet", "statefulsets": "StatefulSet",
    "ds": "DaemonSet", "daemonset": "DaemonSet", "daemonsets": "DaemonSet",
    "job": "Job", "jobs": "Job", "wl": "Workload", "workload": "Workload", "workloads": "Workload",
}  # fmt: skip


def find(engine: Engine, namespace: str, kind: str, name: str) -> Workload | None:
    """Find a workload by its owner, whatever form the kind is written in, or by its own name."""
    wanted = ALIASES.get(kind.lower().split(".")[0], kind)
    for workload in engine.store:
        if workload.key.namespace != namespace:
            continue
        if wanted == "Workload" and workload.key.name == name:
            return workload
        if workload.owner.kind == wanted and workload.owner.name == name:
            return workload
    if wanted == "ReplicaSet" and "-" in name:
        # A Deployment's ReplicaSets are placed with it.
        return find(engine, namespace, "Deployment", name.rpartition("-")[0])
    return None


async def verdicts(engine: Engine, workload: Workload) -> list[Verdict]:
    """Judge every member, those with a share first, then the eligible ones by score, then the others by name."""
    policy = engine.policy_for(workload)
    placed = workload.placement.clusters if workload.placement else {}
    members = [engine.fleet.members[name] for name in sorted(engine.fleet.members)]
    found = await asyncio.gather(*(_judge(engine, workload, policy, member, member.name in placed) for member in members))
    missing = [Verdict(name, "Fleet", "it is no part of the fleet") for name in placed if name not in engine.fleet.members]
    return sorted([*found, *missing], key=lambda v: (v.cluster not in placed, not v.eligible, -v.score, v.cluster))


async def _judge(engine: Engine, workload: Workload, policy: Policy, member: MemberView, placed: bool) -> Verdict:
    failing = engine.fleet.judge(policy, member)
    if failing is not None:
        return failing
    conflict = conflicts(workload, engine.clock.now()).get(member.name)
    if conflict is not None:
        return Verdict(member.name, "Conflict", conflict.message)
    kind = policy.type_for(workload.mode)
    if kind == DIVIDED and not placed and policy.strategy == STATIC_WEIGHT and not policy.weight_of(member.name, member.labels):
        return without_weight(policy, member)
    one: PodSets = [(item.shape, 1) for item in workload.pod_sets]
    whole: PodSets = [(item.shape, item.count) for item in workload.pod_sets]
    # What runs there already needs no second room; a divided share may be of one pod.
    asked = whole if kind == SINGLE and not placed else one
    verdict = await ask_verdict(engine.fleet.admissions[member.name], workload.owner, asked, LIMIT)
    if placed and verdict.filter == CAPACITY:
        return replace(verdict, filter="", message=f"placed here; for more: {verdict.message}")
    return verdict
