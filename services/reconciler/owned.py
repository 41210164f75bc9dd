"""Aggregated objects of one member whose owners live on the host (case 2): followed by label, metadata only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import Resource
from services.common.tasks import Tasks
from services.reconciler.names import HOST_OWNED, HOST_OWNERS, ROUTED, SINK_ORIGIN, Obj
from services.reconciler.objects import annotations_of, deleting, name_of, uid

log = logging.getLogger(__name__)

METADATA_LIST = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}

Changed = Callable[[str, str, str], None]
"""(resource key, namespace, name)."""


class Owner(msgspec.Struct, frozen=True, rename="camel"):
    """One reference to an owner on the host."""

    api_version: str
    kind: str
    name: str
    uid: str


def owners_of(obj: Obj) -> list[Owner] | None:
    """The host owners that an object names; None where the annotation is missing or unreadable."""
    text = annotations_of(obj).get(HOST_OWNERS)
    if not text:
        return None
    try:
        return msgspec.json.decode(text.encode(), type=list[Owner])
    except msgspec.DecodeError:
        log.warning("%s %s: annotation %s is unreadable: left alone", *name_of(obj), HOST_OWNERS)
        return None


class OwnedObjects:
    """Objects labelled as host-owned on one member, for each aggregated resource; `apply` sets which."""

    def __init__(
        self, client: KubeClient, tasks: Tasks, changed: Changed, check: Callable[[], None] = lambda: None
    ) -> None:
        self.client = client
        self._check = check
        """Called right before each write, which it refuses by raising; see Applier.check."""
        self._tasks = tasks
        self._changed = changed
        self.informers: dict[str, Informer] = {}
        self._running: dict[str, Any] = {}

    def apply(self, resources: Iterable[Resource]) -> None:
        """Follow exactly these resources."""
        wanted = {resource.key: resource for resource in resources}
        # In another version it is another source: the old one may be served no longer.
        for key in [key for key, informer in self.informers.items() if wanted.get(key) != informer.resource]:
            self._running.pop(key).cancel()
            del self.informers[key]
        for key, resource in wanted.items():
            if key not in self.informers:
                informer = Informer(
                    self.client, resource, label_selector=f"{HOST_OWNED}=true", metadata_only=True,
                    handler=partial(self._handle, key),
                )  # fmt: skip
                self.informers[key] = informer
                self._running[key] = self._tasks.spawn(informer.run(), f"owned {self.client.name} {key}")

    def _handle(self, key: str, event: str, obj: Obj, old: Obj | None) -> None:
        self._changed(key, *name_of(obj))

    def get(self, key: str, namespace: str, name: str) -> Obj | None:
        """The object's metadata as last seen."""
        informer = self.informers.get(key)
        return informer.store.get((namespace, name)) if informer is not None else None

    def all(self) -> list[tuple[str, Obj]]:
        """Every object, with its resource's key."""
        return [(key, obj) for key, informer in self.informers.items() for obj in list(informer.store.values())]

    def in_namespace(self, namespace: str) -> list[tuple[str, Obj]]:
        """Those of one namespace."""
        return [(key, obj) for key, obj in self.all() if name_of(obj)[0] == namespace]

    async def remove_all(self, namespace: str) -> None:
        """Delete those of one namespace."""
        for key, obj in self.in_namespace(namespace):
            await self.remove(key, obj, "Background")

    async def remove(self, key: str, obj: Obj, propagation: str) -> None:
        """Delete this very object; one that is gone counts as done."""
        informer = self.informers.get(key)
        if informer is None:
            return
        namespace, name = name_of(obj)
        self._check()
        try:
            await self.client.delete(
                informer.resource, namespace or None, name, propagation=propagation, uid=uid(obj)
            )
        except StatusError as error:
            if error.code not in (404, 409):
                raise

    async def routed(self, fleet_id: str, namespace: str = "") -> list[tuple[Resource, Obj]]:
        """Objects that the front created here for users, of one namespace or all; the member is asked."""
        resources = [informer.resource for informer in self.informers.values()]
        return await self._labelled(resources, f"{ROUTED}={fleet_id}", namespace)

    async def sunk(self, fleet_id: str, resources: Iterable[Resource]) -> list[tuple[Resource, Obj]]:
        """Copies that Sinks made here, of these resources; the member is asked."""
        return await self._labelled(resources, f"{SINK_ORIGIN}={fleet_id}")

    async def _labelled(
        self, resources: Iterable[Resource], selector: str, namespace: str = ""
    ) -> list[tuple[Resource, Obj]]:
        found: list[tuple[Resource, Obj]] = []
        for resource in resources:
            if namespace and not resource.namespaced:
                continue
            try:
                answer = await self.client.request(
                    "GET", resource.path(namespace or None), query={"labelSelector": selector}, headers=METADATA_LIST
                )
            except StatusError as error:
                if error.code != 404:
                    raise
                continue  # It does not serve this type.
            found += [(resource, obj) for obj in answer.json().get("items") or ()]
        return found

    async def remove_routed(self, resource: Resource, obj: Obj) -> None:
        """Ask for the deletion of this very object, once."""
        if deleting(obj):
            return
        namespace, name = name_of(obj)
        self._check()
        try:
            await self.client.delete(resource, namespace or None, name, propagation="Background", uid=uid(obj))
        except StatusError as error:
            if error.code not in (404, 409):
                raise

    async def disown(self, key: str, obj: Obj, left: list[Owner]) -> None:
        """Note the owners that are left; without any the object is nobody's and stays."""
        informer = self.informers.get(key)
        if informer is None:
            return
        namespace, name = name_of(obj)
        text = msgspec.json.encode(left).decode() if left else None
        meta: dict[str, Any] = {"uid": uid(obj), "annotations": {HOST_OWNERS: text}}
        if not left:
            meta["labels"] = {HOST_OWNED: None}
        self._check()
        await self.client.patch(informer.resource, namespace or None, name, {"metadata": meta})
