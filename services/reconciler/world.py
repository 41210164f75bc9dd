"""All that the reconciler knows: host, members, and what reconciles reported. Read synchronously, never awaited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from services.reconciler.host_cache import HostCache
from services.reconciler.keys import Key
from services.reconciler.manifests import manifest
from services.reconciler.member_cache import MemberCache
from services.reconciler.names import Obj
from services.reconciler.objects import controller, name_of, uid, workload_name
from services.reconciler.workload_spec import owner_kind, placed

CONFLICT, WAITING = "Conflict", "Waiting"


@dataclass(frozen=True, slots=True)
class Report:
    """What keeps a copy from being as it should; reports of copies that are well are dropped."""

    state: str
    message: str


class World:
    """Caches of host and members, with the questions that several controllers ask."""

    def __init__(self, fleet_id: str, host: HostCache) -> None:
        self.fleet_id = fleet_id
        self.host = host
        self.members: dict[str, MemberCache] = {}
        self.departing: dict[str, datetime] = {}
        """Members that have been leaving for long enough: what is there of ours goes, since when."""
        self._reports: dict[Key, dict[str, Report]] = defaultdict(dict)
        self._manifests: dict[str, tuple[str, Obj]] = {}

    def workload_of(self, kind: str, obj: Mapping[str, Any]) -> Obj | None:
        """The Workload that places an object: its own, or its Deployment's; None while there is none."""
        namespace, name = name_of(obj)
        owner_uid = uid(obj)
        if kind == "replicaset" and (reference := self.deployment_reference(obj)):
            kind, name, owner_uid = "deployment", reference["name"], reference["uid"]
        workload = self.host.get("workload", namespace, workload_name(kind, name))
        if workload is None or workload["spec"]["owner"].get("uid") != owner_uid:
            return None
        return workload

    def deployment_reference(self, replicaset: Mapping[str, Any]) -> dict[str, Any] | None:
        """Reference of the Deployment that controls a ReplicaSet."""
        reference = controller(replicaset)
        return reference if reference is not None and reference["kind"] == "Deployment" else None

    def owner_of(self, workload: Mapping[str, Any]) -> tuple[str, Obj] | None:
        """(kind, object) that a Workload stands for; None when it is gone, another of its name, or of no kind of ours."""
        owner, kind = workload["spec"]["owner"], owner_kind(workload)
        if not kind:
            return None
        obj = self.host.get(kind, workload["metadata"]["namespace"], owner["name"])
        return (kind, obj) if obj is not None and uid(obj) == owner["uid"] else None

    def copied_objects(self, workload: Mapping[str, Any]) -> list[tuple[str, Obj]]:
        """The host objects that are copied for a Workload: the owner, or a Deployment's ReplicaSets."""
        if owner_kind(workload) == "deployment":
            return [("replicaset", child) for child in self.host.children(workload["spec"]["owner"]["uid"])]
        found = self.owner_of(workload)
        return [found] if found is not None else []

    def granted(self, kind: str, obj: Mapping[str, Any], workload: Mapping[str, Any] | None) -> dict[str, int]:
        """Cluster -> replicas of a ReplicaSet as stored in its Workload."""
        divisions = ((workload or {}).get("status") or {}).get("divisions") or {}
        return {cluster: int(n) for cluster, n in (divisions.get(name_of(obj)[1]) or {}).items() if n}

    def is_divided(self, obj: Mapping[str, Any], workload: Mapping[str, Any]) -> bool:
        """Whether a split of this ReplicaSet is stored, be it an empty one."""
        return name_of(obj)[1] in ((workload.get("status") or {}).get("divisions") or {})

    def clusters_of(self, kind: str, obj: Mapping[str, Any]) -> set[str]:
        """Clusters where the object is placed, or has a copy."""
        workload = self.workload_of(kind, obj)
        found = set(placed(workload) or ()) | set(self.granted(kind, obj, workload))
        return found | {m.name for m in self.members.values() if m.of_host(uid(obj))}

    def lost(self, cluster: str, placement: Mapping[str, int], moving: Collection[str] = ()) -> bool:
        """Whether nothing is placed there any more and nothing can be done about what is there.

        `moving`: clusters that are only being left; what runs there counts through a short absence.
        """
        member = self.members.get(cluster)
        if member is None:
            return cluster not in placement
        return cluster not in placement and cluster not in moving and not member.reachable

    def roots(self, member: MemberCache, namespace: str) -> Iterable[Obj]:
        """Host objects of a namespace (all when "") that run on a member, or are about to."""
        seen: set[str] = set()
        for workload in self.host.in_namespace("workload", namespace) if namespace else self.host.all("workload"):
            on_it = member.name in (placed(workload) or ())
            for kind, obj in self.copied_objects(workload):
                if on_it or member.name in self.granted(kind, obj, workload) or member.of_host(uid(obj)):
                    seen.add(uid(obj))
                    yield obj
        for key in member.workloads(namespace):
            obj_or_none = self.host.get(*key)
            if obj_or_none is not None and uid(obj_or_none) not in seen:
                yield obj_or_none

    def dependency(self, kind: str, obj: Obj) -> Obj:
        """The copy's manifest of a dependency, made once per version."""
        version = obj["metadata"]["resourceVersion"]
        cached = self._manifests.get(uid(obj))
        if cached is None or cached[0] != version:
            if len(self._manifests) > 20_000:
                self._manifests.clear()
            cached = self._manifests[uid(obj)] = (version, manifest(kind, obj, self.fleet_id))
        return cached[1]

    def report(self, key: Key, cluster: str, report: Report | None) -> bool:
        """Note what a member's reconcile found; say whether that is news."""
        reports = self._reports[key]
        if reports.get(cluster) == report:
            if not reports:
                del self._reports[key]
            return False
        if report is None:
            del reports[cluster]
            if not reports:
                del self._reports[key]
        else:
            reports[cluster] = report
        return True

    def reports(self, key: Key) -> Mapping[str, Report]:
        """Reports by cluster."""
        return self._reports.get(key, {})

    def forget(self, key: Key) -> None:
        """Drop the reports on an object that is gone."""
        self._reports.pop(key, None)
