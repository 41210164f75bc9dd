"""Writes on members: created without ever overwriting, applied when they differ, deleted with preconditions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

from services.common.errors import MemberUnreachable, StatusError, unavailable
from services.common.kube.content import contains, fingerprint
from services.reconciler.member_cache import IDENTITY_HOLDS, CopyKey, MemberCache
from services.reconciler.names import COPIED, DIGEST, FIELD_MANAGER, HOST_UID, ON_MEMBERS, Obj
from services.reconciler.objects import (
    annotations_of,
    deleting,
    host_uid,
    is_ours,
    must_not_run_twice,
    name_of,
    uid,
)  # fmt: skip

log = logging.getLogger(__name__)

DEADLINE = 10.0
"""Seconds that one call to a member may take."""
FOREIGN_FOR = 30.0
"""Seconds for which an object that is not ours is not asked about again."""
FOREIGN_MAX = 1000
"""Foreign objects that are remembered before those of long ago are dropped."""
JSON_PATCH = "application/json-patch+json"

Outcome = Literal["same", "written", "foreign", "waiting", "earlier", "outdated"]


class Applier:
    """Brings one object on one member to what is desired. Stateless but for what it learnt of foreign objects.

    `valid` says whether this replica has the host for sure: it is asked right before each write, since each await is a
    place where that may have ended.
    """

    def __init__(self, valid: Callable[[], bool] = lambda: True) -> None:
        self._valid = valid
        self._foreign: dict[tuple[str, CopyKey], float] = {}

    def check(self, still: Callable[[], bool] = lambda: True) -> None:
        """To be called right before each write: StatusError 503 unless this replica has the host for sure."""
        if not still():
            raise _OutdatedError
        if not self._valid():
            raise unavailable("another replica may have the host by now: nothing is written", retry_after=1)

    async def sync(
        self, member: MemberCache, kind: str, desired: Obj, still: Callable[[], bool] = lambda: True
    ) -> Outcome:
        """Create or apply; `foreign`: somebody else's object has the name, `waiting`: an old one has to go
        first, `earlier`: there is a workload's copy of another host object of that name, `outdated`: `still` said, right
        before the write, that this is not wanted any more.

        StatusError when the member refuses it; MemberUnreachable when it does not answer in time.
        """
        key: CopyKey = (kind, *name_of(desired))
        actual = member.get(*key)
        if actual is None:
            if time.monotonic() < self._foreign.get((member.name, key), 0.0):
                return "foreign"
            try:
                actual = await self._create(member, key, desired, still)
            except _OutdatedError:
                return "outdated"
            if actual is None:
                return "written"
            if not is_ours(actual, member.fleet_id):
                self._note_foreign(member, key)
                return "foreign"
        if deleting(actual):
            return "waiting"
        if host_uid(actual) != annotations_of(desired)[HOST_UID]:
            if kind in COPIED:
                return "earlier"
            await self.delete(member, kind, actual)
            return "waiting"
        if self._is_as_written(member, actual, desired):
            return "same"
        try:
            await self._apply(member, key, actual, desired, still)
        except _OutdatedError:
            return "outdated"
        return "written"

    def _note_foreign(self, member: MemberCache, key: CopyKey) -> None:
        now = time.monotonic()
        if len(self._foreign) >= FOREIGN_MAX:
            self._foreign = {known: until for known, until in self._foreign.items() if until > now}
        self._foreign[member.name, key] = now + FOREIGN_FOR

    def _is_as_written(self, member: MemberCache, actual: Obj, desired: Obj) -> bool:
        if annotations_of(actual).get(DIGEST) != annotations_of(desired)[DIGEST]:
            return False
        before = member.fingerprints.get(uid(actual))
        if before is None:
            # Written by an earlier process: what a webhook made of it then cannot be told from a change.
            if not contains(actual, desired):
                return False
            member.fingerprints[uid(actual)] = fingerprint(actual)
            return True
        return before == fingerprint(actual)

    async def _create(
        self, member: MemberCache, key: CopyKey, desired: Obj, still: Callable[[], bool]
    ) -> Obj | None:
        """Create; return the object that has the name already, if any."""
        resource = ON_MEMBERS[key[0]]
        namespace = key[1] or None
        try:
            async with deadline(member):
                await member.identify(0.0 if must_not_run_twice(key[0], desired) else IDENTITY_HOLDS)
                self.check(still)
                made = await self._send(member, key, desired)
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
        else:
            member.fingerprints[uid(made)] = fingerprint(made)
            return None
        async with deadline(member):
            return await member.client.get(resource, namespace, key[2])

    async def _send(self, member: MemberCache, key: CopyKey, desired: Obj) -> Obj:
        """Create. Who looks meanwhile, and until its event has come, sees that it may be there."""
        owner, seen = annotations_of(desired)[HOST_UID], False
        member.makes(owner)
        try:
            made = await member.client.create(ON_MEMBERS[key[0]], key[1] or None, desired, fieldManager=FIELD_MANAGER)
            seen = member.get(*key) is not None
        except StatusError as error:
            seen = 400 <= error.code < 500
            raise
        finally:
            member.made(owner, seen=seen)
        return made

    async def _apply(
        self, member: MemberCache, key: CopyKey, actual: Obj, desired: Obj, still: Callable[[], bool]
    ) -> None:
        resource = ON_MEMBERS[key[0]]
        namespace = key[1] or None
        await self._adopt_fields(member, key, actual)
        # With its uid an apply can only change this object, never make another.
        body = {**desired, "metadata": {**desired["metadata"], "uid": uid(actual)}}
        try:
            async with deadline(member):
                self.check(still)
                made = await member.client.apply(resource, namespace, key[2], body, field_manager=FIELD_MANAGER)
        except StatusError as error:
            if error.code != 422 or key[0] in ("replicaset", "statefulset", "daemonset", "job", "claim"):
                raise
            log.info("%s: %s %s/%s cannot be changed in place, making it anew", member.name, *key)
            await self.delete(member, key[0], actual)
            return
        member.fingerprints[uid(made)] = fingerprint(made)

    async def _adopt_fields(self, member: MemberCache, key: CopyKey, actual: Obj) -> None:
        """Turn the fields that our create set into applied ones: else an apply could never remove them."""
        entries: list[dict[str, Any]] = actual["metadata"].get("managedFields") or []
        ours = [i for i, e in enumerate(entries) if e.get("manager") == FIELD_MANAGER and not e.get("subresource")]
        created = [i for i in ours if entries[i].get("operation") == "Update"]
        if not created or any(entries[i].get("operation") == "Apply" for i in ours):
            return
        path = f"/metadata/managedFields/{created[0]}/operation"
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": actual["metadata"]["resourceVersion"]},
            {"op": "replace", "path": path, "value": "Apply"},
        ]
        try:
            async with deadline(member):
                self.check()
                await member.client.patch(ON_MEMBERS[key[0]], key[1] or None, key[2], patch, JSON_PATCH)
        except StatusError as error:
            if error.code not in (409, 422):
                raise
            # Changed meanwhile: the index may no longer fit. Ask, and try once more with what is there.
            async with deadline(member):
                fresh = await member.client.get(ON_MEMBERS[key[0]], key[1] or None, key[2])
            if fresh["metadata"]["resourceVersion"] != actual["metadata"]["resourceVersion"]:
                await self._adopt_fields(member, key, fresh)

    async def delete(self, member: MemberCache, kind: str, copy: Obj, propagation: str = "Background") -> None:
        """Delete this very copy; one that is gone already, or another of its name, counts as done."""
        namespace, name = name_of(copy)
        try:
            async with deadline(member):
                self.check()
                await member.client.delete(
                    ON_MEMBERS[kind], namespace or None, name, propagation=propagation, uid=uid(copy)
                )
        except StatusError as error:
            if error.code not in (404, 409):
                raise


class _OutdatedError(Exception):
    """What was to be written is not wanted any more."""


class deadline:
    """`async with deadline(member)`: MemberUnreachable when the call takes longer than DEADLINE."""

    def __init__(self, member: MemberCache) -> None:
        self._member = member
        self._timeout = asyncio.timeout(DEADLINE)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exc: Any) -> None:
        try:
            await self._timeout.__aexit__(*exc)
        except TimeoutError:
            raise MemberUnreachable(f"cluster {self._member.name}: no answer within {DEADLINE:.0f} s") from None
