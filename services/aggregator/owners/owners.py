"""Answers, for each owner uid on a member: which uid to show, or whether to hide the reference.

1. The owner is a copy of a host object: the host's uid is shown.
2. The owner is a host object without a copy there: never reaches the member (see writes/references.py).
3. The owner lives on the member and the front does not serve it under its uid: hidden.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from services.aggregator.aggregations import Aggregations
from services.aggregator.owners.copies import COPIED, Copies, host_uid
from services.common.errors import StatusError
from services.common.fleet import FleetWatcher, Member
from services.common.kube.client import KubeClient

log = logging.getLogger(__name__)

CACHE = 100_000  # (cluster, uid) verdicts kept that are not copies
ASK_TIMEOUT = 5.0
METADATA = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}


class OwnerLike(Protocol):
    """An ownerReference, as the scanner of object bytes gives it."""

    @property
    def uid(self) -> str: ...
    @property
    def api_version(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...


class Owners:
    """Owner uids of all members. Known ones are answered from memory in O(1); others by asking the member once."""

    def __init__(self, fleet: FleetWatcher, aggregations: Aggregations, fleet_id: str) -> None:
        self._fleet = fleet
        self._aggregations = aggregations
        self._fleet_id = fleet_id
        self._copies: dict[str, Copies] = {}
        self._verdicts: OrderedDict[tuple[str, str], bool] = (
            OrderedDict()
        )  # True: show unchanged, False: hide
        fleet.subscribe(self)
        aggregations.on_change(lambda _: self._verdicts.clear())

    def outgoing(self, cluster: str, uids: Iterable[str]) -> dict[str, str | None] | None:
        """Map owner uids for showing: another uid, or None to hide; what is absent stays as it is.

        Returns None when some uid is not known yet: then `resolve` asks the member.
        """
        if not cluster:
            return {}
        copies = self._copies.get(cluster)
        result: dict[str, str | None] = {}
        for uid in uids:
            host = copies.to_host.get(uid) if copies else None
            if host is not None:
                result[uid] = host
                continue
            verdict = self._verdicts.get((cluster, uid))
            if verdict is None:
                return None
            if not verdict:
                result[uid] = None
        return result

    async def resolve(
        self, cluster: str, owners: Sequence[OwnerLike], namespace: str
    ) -> dict[str, str | None]:
        """As `outgoing`, asking the member about unknown owners (one metadata GET each, 5 s at most)."""
        result: dict[str, str | None] = {}
        for owner in owners:
            known = self.outgoing(cluster, (owner.uid,))
            if known is None:
                known = await self._ask(cluster, owner, namespace)
            result.update(known)
        return result

    def object_uid(self, cluster: str, uid: str) -> str:
        """Uid to show for an object that an event is about."""
        copies = self._copies.get(cluster)
        return copies.to_host.get(uid, uid) if copies else uid

    def member_uid(self, cluster: str, uid: str) -> str:
        """Uid on the member of a host object's copy; the uid itself where there is none."""
        copies = self._copies.get(cluster)
        return copies.to_member.get(uid, uid) if copies else uid

    def object_uids(self, cluster: str) -> dict[str, str]:
        """All copies' uids of a member, member uid -> host uid. Live: do not change it."""
        copies = self._copies.get(cluster)
        return copies.to_host if copies else {}

    def incoming(self, cluster: str) -> dict[str, str]:
        """All copies' uids of a member, host uid -> member uid. Live: do not change it."""
        copies = self._copies.get(cluster)
        return copies.to_member if copies else {}

    async def copy_uid(self, cluster: str, owner: OwnerLike, namespace: str) -> str | None:
        """Uid on the member of the copy of a host object that a caller names as owner; None where there is none.

        A kind that is copied, of an object that is not known (yet), is asked for: its dependents would lose their
        owner on the member. StatusError when the member cannot be asked.
        """
        known = self.incoming(cluster).get(owner.uid)
        if known is not None:
            return known
        resource = COPIED.get((owner.api_version.rpartition("/")[0], owner.kind))
        member = self._fleet.members.get(cluster)
        if resource is None or member is None:
            return None
        path = resource.path(namespace, owner.name)
        try:
            answer = await member.client.request("GET", path, headers=METADATA, timeout=ASK_TIMEOUT)
        except StatusError as error:
            if error.code == 404:
                return None
            raise
        metadata = answer.json().get("metadata") or {}
        if host_uid(metadata, self._fleet_id) != owner.uid:
            return None
        uid = str(metadata["uid"])
        if (copies := self._copies.get(cluster)) is not None:
            copies.learn(uid, owner.uid)
        return uid

    async def engaged(self, member: Member) -> None:
        """A member joined: follow its copies."""
        copies = Copies(member.client, self._fleet_id)
        old, self._copies[member.name] = self._copies.get(member.name), copies
        copies.start()
        if old is not None:
            await old.close()

    async def updated(self, member: Member, old: Member) -> None:
        """Its client follows new credentials by itself; only another client object is followed anew."""
        copies = self._copies.get(member.name)
        if copies is None or copies.client is not member.client:
            await self.engaged(member)

    async def disengaged(self, member: Member) -> None:
        """A member left."""
        copies = self._copies.pop(member.name, None)
        for key in [key for key in self._verdicts if key[0] == member.name]:
            del self._verdicts[key]
        if copies is not None:
            await copies.close()

    async def close(self) -> None:
        """Stop following every member."""
        for copies in list(self._copies.values()):
            await copies.close()
        self._copies.clear()

    async def _ask(self, cluster: str, owner: OwnerLike, namespace: str) -> dict[str, str | None]:
        aggregated = self._aggregations.lookup_kind(owner.api_version, owner.kind)
        if aggregated is not None:
            # Members' own objects of an aggregated type are served under their own uid.
            return self._keep(cluster, owner.uid, show=True)
        group = owner.api_version.rpartition("/")[0]
        resource = COPIED.get((group, owner.kind))
        member = self._fleet.members.get(cluster)
        if resource is None or member is None:
            return self._keep(cluster, owner.uid, show=False)
        host = await self._host_uid(member.client, resource.path(namespace, owner.name), owner.uid)
        if host is None:
            return {owner.uid: None}  # not to be told now: hidden this time, asked again next time
        if not host:
            return self._keep(cluster, owner.uid, show=False)
        copies = self._copies.get(cluster)
        if copies is not None:
            copies.learn(owner.uid, host)
        return {owner.uid: host}

    async def _host_uid(self, client: KubeClient, path: str, uid: str) -> str | None:
        """Host uid of a copy, "" when the owner is the member's own, None when the member does not say."""
        try:
            answer = await client.request("GET", path, headers=METADATA, timeout=ASK_TIMEOUT)
        except StatusError as error:
            if error.code == 404:
                return ""
            log.warning("owner %s on %s not read: %s", path, client.name, error.message)
            return None
        metadata = answer.json().get("metadata") or {}
        return host_uid(metadata, self._fleet_id) if metadata.get("uid") == uid else ""

    def _keep(self, cluster: str, uid: str, *, show: bool) -> dict[str, str | None]:
        self._verdicts[(cluster, uid)] = show
        if len(self._verdicts) > CACHE:
            self._verdicts.popitem(last=False)
        return {} if show else {uid: None}
