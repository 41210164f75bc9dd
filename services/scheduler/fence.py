"""The worker's fence (rule 4): copies that must not run twice are stopped when the manager is out of contact.

StatefulSets are scaled to 0, Jobs annotated at-most-once suspended, and the pods of both deleted side by side; nothing
else is removed. A copy counts as stopped only when its pods are gone. What a copy was is kept in its annotations, so a restarted worker goes on where this one ended. While
contact is missing the fence wins over everybody who writes the copy. It is lifted copy by copy, when the manager
confirms that the stored placement is still here.
"""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import UTC, datetime
from typing import Any

from reclock.scheduler.v1 import scheduler_pb2 as pb
from services.common.errors import StatusError, unavailable
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import EVENTS, PODS, Resource
from services.common.tasks import Backoff, Tasks
from services.scheduler.contact import Contact
from services.scheduler.events import event
from services.scheduler.feed import KINDS, ORIGIN_LABEL
from services.scheduler.ledger import OwnerKey

log = logging.getLogger(__name__)

FENCED, BEFORE = "reclock.dev/fenced", "reclock.dev/fenced-from"
"""Annotations of a fenced copy: since when, and the replicas (or `suspend`) that it had."""
AT_MOST_ONCE = "reclock.dev/at-most-once"
MANAGER = "reclock-fence"
MERGE = "application/merge-patch+json"
GUARDED = ("StatefulSet", "Job")
LONGEST_PERIOD = 1.0
REPLICAS = re.compile("[0-9]{1,9}")
Obj = dict[str, Any]


class Fence:
    """One per worker. `start` follows the member's copies and watches over the contact."""

    def __init__(self, client: KubeClient, cluster: str, contact: Contact | None = None) -> None:
        self._client, self._cluster = client, cluster
        self.contact = contact or Contact(client, cluster)
        self._informers = {
            kind: Informer(client, KINDS[kind], label_selector=ORIGIN_LABEL, metadata_only=True, handler=self._seen)
            for kind in GUARDED
        }
        self._wake = asyncio.Event()
        self._restored = False
        self._held: dict[str, int] = {}
        """Uid of a copy -> its generation as last seen to be stopped, pods and all."""
        self._left: dict[str, int] = {}
        """Uid of a copy that is being stopped -> pods that had not ended when it was last looked at."""

    def start(self, tasks: Tasks) -> None:
        """Follow and guard from now on."""
        for kind, informer in self._informers.items():
            tasks.spawn(informer.run(), f"copies of {kind}")
        tasks.spawn(self._guard(), "fence", root=True)

    def _seen(self, kind: str, obj: Obj, old: Obj | None) -> None:
        if kind == "DELETED":
            self._held.pop(obj["metadata"]["uid"], None)
            self._left.pop(obj["metadata"]["uid"], None)
        self._wake.set()

    # Contact.

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Answer the manager; the contact that it renews is on the member before the answer goes."""
        if not self._restored:
            reason = self.contact.problem or "not yet"
            return pb.HeartbeatResponse(problem=f"the last contact cannot be read from the member: {reason}")
        renewed = self.contact.take(request)
        if renewed:
            await self.contact.store()
        missing = [kind for kind, informer in self._informers.items() if not informer.synced.is_set()]
        problem = self.contact.problem or (f"copies of {', '.join(missing)} are not read yet" if missing else "")
        return pb.HeartbeatResponse(
            nonce=self.contact.issue(), renewed=renewed, fences=self.contact.stored and not problem, problem=problem,
            fenced=sum(1 for _, obj in self._copies() if FENCED in _annotations(obj)), cluster_uid=self.contact.uid,
        )  # fmt: skip

    def _copies(self) -> list[tuple[str, Obj]]:
        """Copies of this fleet that must not run twice."""
        return [
            (kind, obj)
            for kind, informer in self._informers.items()
            for obj in list(informer.store.values())
            if (obj["metadata"].get("labels") or {}).get(ORIGIN_LABEL) == self.contact.fleet_id
            and (kind != "Job" or _annotations(obj).get(AT_MOST_ONCE) == "true" or FENCED in _annotations(obj))
        ]

    # Guard.

    async def _guard(self) -> None:
        backoff = Backoff(initial=0.2, maximum=5.0)
        while not self._restored:
            try:
                await self.contact.restore()
                self._restored = True
            except StatusError as error:
                self.contact.problem = error.message
                await backoff.wait()
        while True:
            after = self.contact.fence_after
            period = min(LONGEST_PERIOD, after / 10) if after else LONGEST_PERIOD
            try:
                async with asyncio.timeout(max(period, 0.05)):
                    await self._wake.wait()
            except TimeoutError:
                pass  # Time passes without events, too.
            self._wake.clear()
            due = [(kind, obj) for kind, obj in self._copies() if self.contact.is_due(_owner(kind, obj))]
            if not due:
                self._held.clear()
                self._left.clear()
                continue
            await asyncio.gather(*(self._stop(kind, obj) for kind, obj in due if not self._is_held(obj)))

    def _is_held(self, obj: Obj) -> bool:
        meta = obj["metadata"]
        return meta["uid"] in self._held and self._held[meta["uid"]] == meta.get("generation", 0)

    async def _stop(self, kind: str, obj: Obj) -> None:
        """Stop one copy; what fails is tried again in the next round."""
        meta = obj["metadata"]
        try:
            fresh = await self._client.get(KINDS[kind], meta["namespace"], meta["name"])
            if fresh["metadata"]["uid"] != meta["uid"] or not self.contact.is_due(_owner(kind, fresh)):
                return
            if _has_ended(fresh):
                self._held[meta["uid"]] = fresh["metadata"]["generation"]
                return
            if not _is_stopped(kind, fresh) or FENCED not in _annotations(fresh):
                fresh = await self._patch(KINDS[kind], fresh, _stopping(kind, fresh))
                log.warning("%s %s/%s is fenced: no contact with the manager", kind, meta["namespace"], meta["name"])
                await self._say(kind, fresh, "Fenced", "stopped: the manager is out of contact, it may run elsewhere soon")
            left = await self._delete_pods(fresh, max(1, int(self.contact.after(_owner(kind, fresh)) / 2)))
            if not left:
                self._held[meta["uid"]] = fresh["metadata"]["generation"]
            elif self._left.get(meta["uid"]) != left:
                log.info("%s %s/%s: %d pods have not ended yet", kind, meta["namespace"], meta["name"], left)
            self._left[meta["uid"]] = left
        except StatusError as error:
            if error.code not in (404, 409):
                log.warning("%s %s/%s is not fenced yet: %s", kind, meta["namespace"], meta["name"], error.message)

    async def _patch(self, resource: Resource, obj: Obj, patch: Obj) -> Obj:
        meta = obj["metadata"]
        body = {**patch, "metadata": {**patch["metadata"], "uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}
        return await self._client.patch(
            resource, meta["namespace"], meta["name"], body, MERGE, fieldManager=MANAGER
        )

    async def _delete_pods(self, owner: Obj, limit: int) -> int:
        """All at once: one after another, as a scale-down does it, could outlast the manager's patience.

        So could pods with a long grace period, be it that their controller has deleted them: they get `limit` seconds at
        most. Returns how many are still there.
        """
        labels = (owner["spec"].get("selector") or {}).get("matchLabels") or {}
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        namespace = owner["metadata"]["namespace"]
        pods = (await self._client.list(PODS, namespace, labelSelector=selector))["items"]
        left = 0
        for pod in pods:
            meta = pod["metadata"]
            mine = any(ref["uid"] == owner["metadata"]["uid"] for ref in meta.get("ownerReferences") or ())
            if not mine or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                continue
            left += 1
            if "deletionTimestamp" in meta:
                if (meta.get("deletionGracePeriodSeconds") or 0) > limit:
                    await self._client.delete(PODS, namespace, meta["name"], uid=meta["uid"], grace=limit)
                continue
            long = (pod.get("spec") or {}).get("terminationGracePeriodSeconds", 0) > limit
            await self._client.delete(PODS, namespace, meta["name"], uid=meta["uid"], grace=limit if long else None)
        return left

    # Lifting.

    async def lift(self, owner: OwnerKey) -> None:
        """The manager confirms that the copy's placement is here: it runs again as before. StatusError: try again."""
        if owner.kind not in GUARDED:
            return
        found = self._informers[owner.kind].store.get((owner.namespace, owner.name))
        if found is None or FENCED not in _annotations(found):
            return
        if not self.contact.is_live():
            raise unavailable(f"{self._cluster}: its worker has no settled contact with the manager yet", retry_after=1)
        try:
            fresh = await self._client.get(KINDS[owner.kind], owner.namespace, owner.name)
            if FENCED not in _annotations(fresh):
                return
            self._held.pop(fresh["metadata"]["uid"], None)
            self._left.pop(fresh["metadata"]["uid"], None)
            await self._patch(KINDS[owner.kind], fresh, _starting(owner.kind, fresh))
        except StatusError as error:
            if error.code == 404:
                return
            raise
        log.info("%s %s/%s runs again: its placement is still here", owner.kind, owner.namespace, owner.name)
        await self._say(owner.kind, fresh, "Unfenced", "runs again: the manager is back, its placement is still here")

    async def _say(self, kind: str, obj: Obj, reason: str, message: str) -> None:
        try:
            meta = obj["metadata"]
            involved = {"apiVersion": KINDS[kind].group_version, "kind": kind, "name": meta["name"],
                        "namespace": meta["namespace"], "uid": meta["uid"]}  # fmt: skip
            body = event(involved, reason, message, self._cluster, good=reason == "Unfenced")
            await self._client.create(EVENTS, meta["namespace"], body)
        except StatusError as error:
            log.info("the event %s of %s %s was not written: %s", reason, kind, obj["metadata"]["name"], error.message)


def _annotations(obj: Obj) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def _owner(kind: str, obj: Obj) -> OwnerKey:
    return OwnerKey(obj["metadata"]["namespace"], kind, obj["metadata"]["name"])


def _is_stopped(kind: str, obj: Obj) -> bool:
    spec = obj.get("spec") or {}
    return spec.get("suspend") is True if kind == "Job" else spec.get("replicas", 1) == 0


def _has_ended(obj: Obj) -> bool:
    """Whether it is a Job that is over: it runs no pods, and its logs may be read."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)


def _stopping(kind: str, obj: Obj) -> Obj:
    """The patch that stops it; what it was before is kept from its first fencing."""
    spec, known = obj["spec"], _annotations(obj)
    was = str(bool(spec.get("suspend"))).lower() if kind == "Job" else str(spec.get("replicas", 1))
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    annotations = {FENCED: known.get(FENCED, since), BEFORE: known.get(BEFORE, was)}
    return {"metadata": {"annotations": annotations}, "spec": {"suspend": True} if kind == "Job" else {"replicas": 0}}


def _starting(kind: str, obj: Obj) -> Obj:
    """The patch that makes it what it was; the reconciler brings it up to date after that."""
    was = _annotations(obj).get(BEFORE, "")
    # Somebody may have edited it; the reconciler knows how many there are to be.
    spec: Obj = {"suspend": was == "true"} if kind == "Job" else {"replicas": int(was) if REPLICAS.fullmatch(was) else 0}
    return {"metadata": {"annotations": {FENCED: None, BEFORE: None}}, "spec": spec}
