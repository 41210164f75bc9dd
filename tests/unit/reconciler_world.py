"""A World whose caches are filled by hand, and a client that plays one cluster's apiserver. For unit tests."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from services.common.errors import StatusError, already_exists, not_found
from services.common.fleet import Member
from services.common.kube.resource import Resource
from services.common.kube.shape import Shape
from services.common.tasks import Tasks
from services.reconciler.host_cache import HostCache
from services.reconciler.manifests import manifest
from services.reconciler.member_cache import MemberCache
from services.reconciler.names import FINALIZER, Obj
from services.reconciler.workload_spec import new_workload
from services.reconciler.world import World

FLEET = "fleet-id"
_versions = itertools.count(1)


class Client:
    """Objects by (resource, namespace, name); writes are noted in `calls`."""

    label = "cluster"
    shape = Shape()

    def __init__(self, uid: str = "") -> None:
        self.uid = uid
        self.objects: dict[tuple[str, str, str], Obj] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.refuse: StatusError | None = None

    def hold(self, resource: Resource, obj: Obj) -> Obj:
        """Store an object as an apiserver would."""
        meta = obj["metadata"]
        number = next(_versions)
        stored = copy.deepcopy(obj)
        stored["metadata"] |= {"resourceVersion": str(number), "generation": meta.get("generation", 1)}
        stored["metadata"].setdefault("uid", f"uid-{number}")
        self.objects[resource.key, meta.get("namespace", ""), meta["name"]] = stored
        return stored

    def _say(self, verb: str, resource: Resource, name: str) -> None:
        self.calls.append((verb, resource.key, name))
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error

    async def request(self, method: str, path: str, **how: Any) -> Any:
        """Which cluster it is."""
        assert (method, path) == ("GET", self.shape.identity_path)
        return SimpleNamespace(json=lambda: {"metadata": {"uid": self.uid}})

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Obj:
        self._say("get", resource, name)
        found = self.objects.get((resource.key, namespace or "", name))
        if found is None:
            raise not_found(resource.resource, name)
        return found

    async def list(self, resource: Resource, namespace: str | None = None, **query: Any) -> Obj:
        self._say("list", resource, namespace or "")
        return {"items": [obj for key, obj in self.objects.items() if key[:2] == (resource.key, namespace or "")]}

    async def create(self, resource: Resource, namespace: str | None, obj: Obj, **query: Any) -> Obj:
        self._say("create", resource, obj["metadata"]["name"])
        if (resource.key, namespace or "", obj["metadata"]["name"]) in self.objects:
            raise already_exists(resource.resource, obj["metadata"]["name"])
        return self.hold(resource, obj)

    async def apply(self, resource: Resource, namespace: str | None, name: str, obj: Obj, **query: Any) -> Obj:
        self._say("apply", resource, name)
        return self.hold(resource, obj)

    async def patch(self, resource: Resource, namespace: str | None, name: str, patch: Any, *args: Any, **query: Any) -> Obj:
        self._say("patch", resource, name)
        return self.objects.get((resource.key, namespace or "", name), {})

    async def delete(self, resource: Resource, namespace: str | None, name: str, **query: Any) -> Obj:
        self._say(f"delete {query.get('propagation')}", resource, name)
        self.objects.pop((resource.key, namespace or "", name), None)
        return {}


class Made:
    """A World with helpers that put objects into its caches."""

    def __init__(self, *members: str) -> None:
        self.client = Client()
        self.world = World(FLEET, HostCache(self.client, lambda *_: None))  # type: ignore[arg-type]
        for name in members:
            member = Member(name, uid=f"uid-{name}", reachable=True, client=Client(f"uid-{name}"))  # type: ignore[arg-type]
            cache = MemberCache(member, FLEET, lambda *_: None, Tasks(name))
            self.world.members[name] = cache
            for informer in cache.informers.values():
                informer.synced.set()

    def member(self, name: str) -> MemberCache:
        return self.world.members[name]

    def host(self, kind: str, name: str, *, held: bool = True, **fields: Any) -> Obj:
        """Put an object of namespace `ns` on the host."""
        meta = {"name": name, "namespace": "ns", "uid": f"host-{name}", "generation": 1,
                "resourceVersion": str(next(_versions)), "finalizers": [FINALIZER] if held else []}  # fmt: skip
        obj = {"apiVersion": "x/v1", "kind": kind, "metadata": {**meta, **fields.pop("metadata", {})}, **fields}
        self.seen(kind, obj)
        return obj

    def seen(self, kind: str, obj: Obj, event: str = "ADDED") -> None:
        """An event of the host."""
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        old = self.world.host.informers[kind].store.get(key)
        if event == "DELETED":
            self.world.host.informers[kind].store.pop(key, None)
        else:
            self.world.host.informers[kind].store[key] = obj
        self.world.host._handle(kind, event, obj, old)

    def placed(self, kind: str, owner: Obj, placement: Mapping[str, int] | None, **status: Any) -> Obj:
        """Give an owner its Workload."""
        workload = new_workload(kind, owner)
        workload["metadata"] |= {"uid": f"wl-{workload['metadata']['name']}", "resourceVersion": str(next(_versions))}
        if placement is not None:
            clusters = [{"name": name, "replicas": number} for name, number in placement.items()]
            status["placement"] = {"attempt": 0, "clusters": clusters}
        workload["status"] = status
        self.seen("workload", workload)
        return workload

    def copy(self, kind: str, owner: Obj, cluster: str, *, status: Obj | None = None, **how: Any) -> Obj:
        """Put the owner's copy on a member, and into its cache."""
        member = self.member(cluster)
        made = manifest(kind, owner, FLEET, **how)
        client: Any = member.client
        stored = client.hold(member.informers[kind].resource, made)
        stored["status"] = status or {}
        self.cached(kind, stored, cluster)
        return stored  # type: ignore[no-any-return]

    def cached(self, kind: str, obj: Obj, cluster: str) -> None:
        """An event of a member."""
        member = self.member(cluster)
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        old = member.informers[kind].store.get(key)
        member.informers[kind].store[key] = obj
        member._handle(kind, "ADDED", obj, old)
