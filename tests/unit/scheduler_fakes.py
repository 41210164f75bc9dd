"""An in-process fleet for the scheduler's tests: a store with compare-and-swap, members with nodes, a clock to move."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from services.scheduler import policy as policies
from services.scheduler.admission import LocalAdmission
from services.scheduler.departures import Timeouts
from services.scheduler.engine import Engine
from services.scheduler.fleet import Fleet
from services.scheduler.matching import Taint
from services.scheduler.member import Answer, Ask, MemberState
from services.scheduler.resync import Resync
from services.scheduler.store import StaleError
from services.scheduler.workload import Key, Workload, parse

START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Time stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class FakeMember:
    name: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    reachable: bool = True
    ready: bool = True
    reason: str = ""
    unreachable_since: datetime | None = None
    forgotten: bool = False
    leaving_since: datetime | None = None


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


class FakeStore:
    """Holds Workloads as the host does; every write needs the version it was made from."""

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.history: list[tuple[str, dict[str, Any]]] = []
        self.before_patch: list[Any] = []
        """Called once each, before the next patches are applied: another writer that is faster."""
        self._versions = itertools.count(1)

    def __iter__(self) -> Iterator[Workload]:
        return iter([parse(obj) for obj in self.objects.values()])

    def get(self, key: Key) -> Workload | None:
        obj = self.objects.get(key)
        return None if obj is None else parse(obj)

    async def patch_status(self, workload: Workload, status: Mapping[str, Any]) -> Workload:
        await asyncio.sleep(0)
        if self.before_patch:
            self.before_patch.pop(0)()
        obj = self.objects.get(workload.key)
        if obj is None or obj["metadata"]["resourceVersion"] != workload.version:
            raise StaleError("the object has been modified")
        self.write(workload.key, status=merge(obj.get("status"), status))
        self.history.append((workload.key.name, copy.deepcopy(dict(status))))
        return parse(self.objects[workload.key])

    def write(self, key: Key, **parts: Any) -> None:
        """Write as anyone may: `spec=`, `status=`, `metadata=` replace those parts."""
        obj = copy.deepcopy(self.objects.get(key) or {"metadata": {"namespace": key.namespace, "name": key.name}})
        metadata = obj["metadata"]
        for name, value in parts.items():
            obj[name] = {**metadata, **value} if name == "metadata" else value
        if "spec" in parts:
            obj["metadata"]["generation"] = obj["metadata"].get("generation", 0) + 1
        obj["metadata"]["resourceVersion"] = str(next(self._versions))
        obj["metadata"].setdefault("uid", f"uid-{key.name}")
        obj["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self.objects[key] = obj


def node(name: str, cpu: str = "4", memory: str = "8Gi", pods: str = "110", **spec: Any) -> dict[str, Any]:
    labels = spec.pop("labels", {})
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": pods}},
    }


def pod(
    name: str, cpu: str = "1", node_name: str = "", namespace: str = "default", phase: str = "Running",
    owner: tuple[str, str] | None = None, labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    metadata: dict[str, Any] = {
        "name": name, "namespace": namespace, "uid": f"pod-{name}", "labels": labels or {},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    if owner:
        metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "controller": True}]
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": metadata, "spec": {"containers": [container], "nodeName": node_name}, "status": {"phase": phase},
    }  # fmt: skip


class GatedAdmission(LocalAdmission):
    """A worker in another process: it answers when its gate is open, and may be gone."""

    immediate = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[Ask] = []
        self.confirmed: list[tuple[str, int]] = []
        self.released: list[str] = []

    async def reserve(self, ask: Ask, ttl: float | None = None) -> Answer:
        self.asked.append(ask)
        await self.gate.wait()
        return await super().reserve(ask, ttl)

    async def confirm(self, id_: str, attempt: int) -> bool:
        self.confirmed.append((id_, attempt))
        return await super().confirm(id_, attempt)

    async def release(self, id_: str, attempt: int) -> None:
        self.released.append(id_)
        await super().release(id_, attempt)


class World:
    """Engine, store, members and clock, put together."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = FakeStore()
        self.fleet = Fleet()
        self.states: dict[str, MemberState] = {}
        self.clashes: dict[tuple[str, str, str, str], str] = {}
        self.events: list[tuple[str, str, str]] = []
        self.start()

    def start(self) -> None:
        """Start a manager; a second call is a restart: what it knew only itself is gone."""
        self.engine = Engine(
            self.store, self.fleet, self.clock, timeouts=Timeouts(admit=2.0), patience=0.05,
            observe=lambda w, reason, message, good: self.events.append((w.key.name, reason, message)),
        )

    def policy(self, **spec: Any) -> None:
        """Add a policy; its name is `name`."""
        name = spec.pop("name", "demo")
        fresh = policies.parse({"metadata": {"name": name}, "spec": spec})
        self.engine.policies = (*(p for p in self.engine.policies if p.name != name), fresh)
        self.fleet.touch()

    def member(self, name: str, *nodes: dict[str, Any], remote: bool = False, **fields: Any) -> MemberState:
        state = MemberState(name)
        for item in nodes or (node(f"{name}-n0"),):
            state.upsert_node(item)

        async def clash(owner: Any, fleet_id: str) -> str:
            return self.clashes.get((name, owner.namespace, owner.kind, owner.name), "")

        kind = GatedAdmission if remote else LocalAdmission
        self.states[name] = state
        self.fleet.members[name] = FakeMember(name, **fields)
        self.fleet.admissions[name] = kind(state, self.clock, ttl=30.0, clash=clash)
        self.fleet.touch()
        return state

    def change(self, name: str, **fields: Any) -> None:
        """Change what discovery says of a member."""
        for field_name, value in fields.items():
            setattr(self.fleet.members[name], field_name, value)
        self.fleet.touch()

    def lose(self, name: str) -> None:
        self.change(name, reachable=False, ready=False, unreachable_since=self.clock.now(), reason="refused")

    def bring_back(self, name: str) -> None:
        self.change(name, reachable=True, ready=True, unreachable_since=None, reason="")

    def workload(
        self, name: str, kind: str = "Job", count: int = 1, cpu: str = "1", mode: str = "Single", **spec: Any
    ) -> Key:
        key = Key("default", name)
        constraints = spec.pop("constraints", {})
        api = "batch/v1" if kind == "Job" else "apps/v1"
        self.store.write(key, spec={
            "owner": {"apiVersion": api, "kind": kind, "name": name, "uid": f"owner-{name}"},
            "podSets": [{"name": "main", "count": count, "requests": {"cpu": cpu}, "constraints": constraints}],
            "mode": mode, **spec,
        })  # fmt: skip
        return key

    def edit(self, key: Key, count: int | None = None, **spec: Any) -> None:
        fresh = copy.deepcopy(self.store.objects[key]["spec"])
        if count is not None:
            fresh["podSets"][0]["count"] = count
        self.store.write(key, spec={**fresh, **spec})

    def report(self, key: Key, **status: Any) -> None:
        """Write status as the reconciler does."""
        self.store.write(key, status=merge(self.store.objects[key].get("status"), status))

    async def settle(self, key: Key, steps: int = 10) -> Workload:
        """Reconcile until nothing more is to be done at once."""
        for _ in range(steps):
            wait = await self.engine.reconcile(key)
            if wait is None or wait > 0.5:
                break
        found = self.store.get(key)
        assert found is not None
        return found

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let other tasks run until `holds`."""
        async with asyncio.timeout(10):
            while not holds():  # noqa: ASYNC110 (the store tells nobody, as a test would need it)
                await asyncio.sleep(0.01)

    async def resync(self) -> None:
        """What the manager does when it starts to lead."""
        for name in self.fleet.admissions:
            assert await Resync(self.engine, lambda: True, lambda cluster: None).tell(name)

    def clusters(self, key: Key) -> dict[str, int] | None:
        found = self.store.get(key)
        assert found is not None
        return None if found.placement is None else dict(found.placement.clusters)

    def status(self, key: Key) -> dict[str, Any]:
        return self.store.objects[key].get("status") or {}

    def condition(self, key: Key, kind: str) -> dict[str, Any]:
        for item in self.status(key).get("conditions") or ():
            if item["type"] == kind:
                return item
        return {}


def gated(world: World, name: str) -> GatedAdmission:
    """The worker of a member that was added with `remote=True`."""
    admission = world.fleet.admissions[name]
    assert isinstance(admission, GatedAdmission)
    return admission
