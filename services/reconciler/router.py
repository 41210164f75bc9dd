"""Which keys an event makes due. Runs inside the informers' handlers: reads caches, queues keys, never waits."""

from __future__ import annotations

from collections.abc import Iterator

from services.reconciler.controllers import garbage, leaving, namespaces
from services.reconciler.controllers.context import Context
from services.reconciler.decide import EXCLUSIVE
from services.reconciler.keys import Key
from services.reconciler.member_cache import MemberCache
from services.reconciler.names import COPIED, HOST, NAMESPACE, Obj
from services.reconciler.objects import deleting, name_of, replicas, uid, workload_name
from services.reconciler.owned import owners_of
from services.reconciler.workload_spec import KINDS, owner_kind, placed

DEPENDENCY_DELAY = 0.2
"""Seconds over which changes to one namespace's dependencies are gathered."""
META = ("labels", "annotations", "finalizers", "deletionTimestamp", "generation", "ownerReferences")


class Router:
    """Turns events of host and members into keys."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.world = context.world

    def due(self, cluster: str) -> Iterator[Key]:
        """All that may be due in a cluster, for a queue that begins anew; what is not read yet is told when it is."""
        if cluster == HOST:
            for kind in (*KINDS, "workload", NAMESPACE):
                for namespace, name in list(self.world.host.informers[kind].store):
                    yield Key(kind, namespace, name)
            return
        member = self.world.members.get(cluster)
        if member is not None and member.member.leaving_since is not None:
            yield leaving.KEY
        if member is not None and member.synced:
            yield from garbage.everything(member)
            yield namespaces.ROUTED_KEY
            for kind, obj in self._placed_on(member):
                yield Key(kind, *name_of(obj))

    def _placed_on(self, member: MemberCache) -> Iterator[tuple[str, Obj]]:
        for workload in self.world.host.all("workload"):
            for kind, obj in self.world.copied_objects(workload):
                if member.name in self.world.clusters_of(kind, obj):
                    yield kind, obj

    # Host.

    def host_event(self, kind: str, event: str, obj: Obj, old: Obj | None) -> None:
        """An object of the host was added, changed or deleted."""
        namespace, name = name_of(obj)
        if kind == "workload":
            self._workload(obj, old)
        elif kind in KINDS:
            self._owner(kind, event, obj, old)
        elif kind == NAMESPACE:
            self.context.add_host(kind, "", name)
            for member in self.world.members.values():
                if member.get(NAMESPACE, "", name) is not None:
                    self.context.add(member.name, NAMESPACE, "", name)
        else:
            self._dependency(namespace, changed_set=event != "MODIFIED")

    def _owner(self, kind: str, event: str, obj: Obj, old: Obj | None) -> None:
        namespace, name = name_of(obj)
        self.context.add_host(kind, namespace, name)
        if kind == "deployment":
            if event == "DELETED":
                self.context.add_host("workload", namespace, workload_name(kind, name))
            return
        self._deployment_of(kind, obj)
        if old is None or event == "DELETED" or changed(obj, old):
            for cluster in self.world.clusters_of(kind, obj):
                self.context.add(cluster, kind, namespace, name)
        if old is not None and old["metadata"].get("ownerReferences") != obj["metadata"].get("ownerReferences"):
            # Orphaned or adopted: its own Workload is needed now, or surplus.
            self._deployment_of(kind, old)
            self.context.add_host("workload", namespace, workload_name(kind, name))

    def _deployment_of(self, kind: str, obj: Obj) -> None:
        reference = self.world.deployment_reference(obj) if kind == "replicaset" else None
        if reference is not None:
            self.context.add_host("deployment", name_of(obj)[0], reference["name"])

    def _workload(self, workload: Obj, old: Obj | None) -> None:
        namespace, name = name_of(workload)
        self.context.add_host("workload", namespace, name)
        if kind := owner_kind(workload):
            self.context.add_host(kind, namespace, workload["spec"]["owner"]["name"])
        before = set(placed(old) or ()) if old is not None else set()
        moved = before ^ set(placed(workload) or ())
        for kind, obj in self.world.copied_objects(workload):
            self.context.add_host(kind, *name_of(obj))
            for cluster in self.world.clusters_of(kind, obj) | before:
                self.context.add(cluster, kind, *name_of(obj))
        for cluster in moved:
            self._later(cluster, namespace)

    def _dependency(self, namespace: str, *, changed_set: bool) -> None:
        for member in self.world.members.values():
            self._later(member.name, namespace)
            if changed_set and namespace:
                # Copies that miss something say so; it may have come, or gone.
                for key in member.workloads(namespace):
                    self.context.add(member.name, *key)

    def _later(self, cluster: str, namespace: str) -> None:
        self.context.queue.add_after(cluster, str(Key("dependencies", namespace, "all")), DEPENDENCY_DELAY)

    # Members.

    def member_event(self, member: MemberCache, kind: str, event: str, obj: Obj, old: Obj | None) -> None:
        """A copy on a member was added, changed or deleted."""
        namespace, name = name_of(obj)
        drifted = old is None or event == "DELETED" or changed(obj, old)
        if kind in COPIED:
            self._copy(member, kind, event, obj, drifted)
        elif kind == NAMESPACE:
            self.context.add_host(NAMESPACE, "", name)
            self.context.add(member.name, NAMESPACE, "", name)
        elif event == "DELETED" or old is not None:
            self._later(member.name, namespace)
        if event == "DELETED" and namespace:
            host = self.world.host.get(NAMESPACE, "", namespace)
            if host is not None and deleting(host):
                self.context.add_host(NAMESPACE, "", namespace)

    def _copy(self, member: MemberCache, kind: str, event: str, obj: Obj, drifted: bool) -> None:
        namespace, name = name_of(obj)
        self.context.add_host(kind, namespace, name)
        host = self.world.host.get(kind, namespace, name)
        if host is not None:
            self._deployment_of(kind, host)
        if drifted or (kind == "replicaset" and not replicas(obj)):
            self.context.add(member.name, kind, namespace, name)
        if event != "DELETED":
            return
        self._later(member.name, namespace)
        if host is not None and kind in EXCLUSIVE:
            for cluster in self.world.clusters_of(kind, host):
                self.context.add(cluster, kind, namespace, name)

    def member_changed(self, member: MemberCache) -> None:
        """A member was read for the first time, left, returned or was lost: everything that concerns it is due."""
        for kind, obj in self._placed_on(member):
            self.context.add_host(kind, *name_of(obj))
            self._deployment_of(kind, obj)
            self.context.add(member.name, kind, *name_of(obj))
        for namespace in self.world.host.all(NAMESPACE):
            if deleting(namespace):
                self.context.add_host(NAMESPACE, "", namespace["metadata"]["name"])
        self.context.add(member.name, *namespaces.ROUTED_KEY)
        garbage.sweep(self.context, member)

    # Case 2.

    def owned_event(self, cluster: str, resource: str, namespace: str, name: str) -> None:
        """An object with host owners was added, changed or deleted."""
        self.context.add(cluster, f"owned/{resource}", namespace, name)
        host = self.world.host.get(NAMESPACE, "", namespace)
        if host is not None and deleting(host):
            self.context.add_host(NAMESPACE, "", namespace)

    def owner_changed(self, owner_uid: str) -> None:
        """An owner on the host is going or gone ("" = any may be): what it owns is due."""
        for member in self.world.members.values():
            for resource, obj in member.owned.all() if member.owned is not None else ():
                if not owner_uid or any(owner.uid == owner_uid for owner in owners_of(obj) or ()):
                    self.context.add(member.name, f"owned/{resource}", *name_of(obj))


def changed(obj: Obj, old: Obj) -> bool:
    """Whether more than the status changed."""
    if uid(obj) != uid(old):
        return True
    now, before = obj["metadata"], old["metadata"]
    if any(now.get(field) != before.get(field) for field in META):
        return True
    if "generation" in now:
        return False
    return {**obj, "metadata": 0, "status": 0} != {**old, "metadata": 0, "status": 0}
