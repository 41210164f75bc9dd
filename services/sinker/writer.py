"""Makes one object of one cluster as it should be, or removes it; never touches what this Sink did not make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter

from reclock import AlreadyExists, ApiError, Cluster, Conflict, Invalid, NotFound, Object, Resource
from services.common.kube.content import contains, fingerprint
from services.sinker.copies import SINK, digest_of, is_ours

MANAGER = "reclock-sinker"
TIMEOUT = 10.0
WRITES = Counter("reclock_sinker_writes", "Writes of copies", ["sink", "verb"])
NAMESPACES = Resource("", "v1", "namespaces")
FINGERPRINTS_MAX = 100_000


@dataclass(frozen=True)
class State:
    """How a copy stands: SYNCED, GONE (as it should be), WAITING (its deletion takes time), CONFLICT."""

    word: str
    message: str = ""


SYNCED, GONE, WAITING = State("Synced"), State("Gone"), State("Waiting")
CONFLICT = "Conflict"


class Writer:
    """Of one Sink."""

    def __init__(self, resource: Resource, sink: str, fleet_id: str, *, create_namespaces: bool) -> None:
        self._resource = resource
        self._sink = sink
        self._fleet_id = fleet_id
        self._create_namespaces = create_namespaces
        self._written: dict[str, bytes] = {}
        """Fingerprint of each copy, by uid, as it was right after our last write: defaults and webhooks are in it."""

    async def sync(
        self, cluster: Cluster, namespace: str, name: str, desired: Object | None, found: Object | None
    ) -> State:
        """Make it so. `found` is what is there; ApiError where the cluster does not take it."""
        if found is not None and not is_ours(found, self._fleet_id, self._sink):
            return GONE if desired is None else State(CONFLICT, self._foreign(namespace, name, found))
        if found is not None and (desired is None or found["metadata"].get("deletionTimestamp")):
            if not found["metadata"].get("deletionTimestamp"):
                await self._delete(cluster, namespace, name, found)
            return GONE if desired is None else WAITING
        if desired is None:
            return GONE
        if found is None:
            return await self._create(cluster, namespace, name, desired)
        if not self._same(found, desired):
            await self._apply(cluster, namespace, name, desired, found)
        return SYNCED

    def _same(self, found: Object, desired: Object) -> bool:
        if digest_of(found) != digest_of(desired):
            return False
        before, now = self._written.get(found["metadata"]["uid"]), fingerprint(found)
        if before is None and contains(found, desired):  # written by an earlier process
            self._note(found)
            return True
        return before == now

    def _note(self, obj: Object) -> None:
        if len(self._written) >= FINGERPRINTS_MAX:
            self._written.clear()  # costs at most one more apply of what a webhook changed
        self._written[obj["metadata"]["uid"]] = fingerprint(obj)

    async def _create(self, cluster: Cluster, namespace: str, name: str, desired: Object) -> State:
        # Create, not apply: nothing that came here in between may be overwritten.
        try:
            made = await self._post(cluster, desired)
        except AlreadyExists:
            found = await cluster.get(self._resource, name, namespace)
            return await self.sync(cluster, namespace, name, desired, found)
        except NotFound as error:
            if not (namespace and self._create_namespaces and error.details.get("kind") == "namespaces"):
                raise
            await self._make_namespace(cluster, namespace)
            made = await self._post(cluster, desired)
        self._note(made)
        WRITES.labels(self._sink, "create").inc()
        return SYNCED

    async def _post(self, cluster: Cluster, desired: Object) -> Object:
        path = self._resource.path(desired["metadata"].get("namespace", ""))
        made: Object = await cluster.call("POST", path, query={"fieldManager": MANAGER}, body=desired, timeout=TIMEOUT)
        return made

    async def _make_namespace(self, cluster: Cluster, namespace: str) -> None:
        try:
            await cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, resource=NAMESPACES)
        except AlreadyExists:
            return  # somebody was faster

    async def _apply(self, cluster: Cluster, namespace: str, name: str, desired: Object, found: Object) -> None:
        await self._adopt_fields(cluster, namespace, name, found)
        # With its uid an apply can only change this object, never make another.
        body = {**desired, "metadata": {**desired["metadata"], "uid": found["metadata"]["uid"]}}
        made: Object = await cluster.call(
            "PATCH", self._resource.path(namespace, name), body=body, timeout=TIMEOUT,
            query={"fieldManager": MANAGER, "force": True}, content_type="application/apply-patch+yaml",
        )  # fmt: skip
        self._note(made)
        WRITES.labels(self._sink, "apply").inc()

    async def _adopt_fields(self, cluster: Cluster, namespace: str, name: str, found: Object) -> None:
        """Turn the fields that our create set into applied ones: else an apply could never remove them."""
        entries: list[dict[str, Any]] = found["metadata"].get("managedFields") or []
        ours = [at for at, one in enumerate(entries) if one.get("manager") == MANAGER and not one.get("subresource")]
        created = [at for at in ours if entries[at].get("operation") == "Update"]
        if not created or any(entries[at].get("operation") == "Apply" for at in ours):
            return
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]},
            {"op": "replace", "path": f"/metadata/managedFields/{created[0]}/operation", "value": "Apply"},
        ]
        try:
            await cluster.patch(self._resource, name, patch, namespace, type="json")
        except (Conflict, Invalid) as error:
            raise ApiError(f"{cluster}: {namespace}/{name} changed meanwhile: {error}", code=409) from error

    async def _delete(self, cluster: Cluster, namespace: str, name: str, found: Object) -> None:
        try:
            await cluster.delete(self._resource, name, namespace, uid=found["metadata"]["uid"])
        except Conflict:
            return  # another object has the name by now: not ours
        self._written.pop(found["metadata"]["uid"], None)
        WRITES.labels(self._sink, "delete").inc()

    def _foreign(self, namespace: str, name: str, found: Object) -> str:
        other = (found["metadata"].get("labels") or {}).get(SINK)
        whose = f"of Sink {other!r} or another fleet's" if other else "not Reclock's"
        return f"{f'{namespace}/' if namespace else ''}{name} is there and {whose}; it is left as it is"
