"""The registry of aggregated resources: an informer on the host, types resolved by asking the clusters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from services.aggregator.aggregations.hidden import HOST_SHOWN, host_shown, is_custom
from services.aggregator.aggregations.served import Served, find_served
from services.aggregator.aggregations.spec import aggregated, canonical
from services.aggregator.types import HOST, Aggregated
from services.common.errors import StatusError
from services.common.fleet import FleetWatcher, Member
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import API_AGGREGATIONS

log = logging.getLogger(__name__)

RECHECK = 10.0  # seconds between looks at types that nobody serves, or that somebody could not be asked about
SETTLED = 60.0  # seconds between looks at the others: types come and go on single members


class Aggregations:
    """All `APIAggregation` objects that can be acted on now.

    `on_change` gets the whole current set whenever it changed; it must not block. Lookups cost O(1).
    """

    def __init__(self, host: KubeClient, fleet: FleetWatcher) -> None:
        self._host = host
        self._fleet = fleet
        self._informer = Informer(host, API_AGGREGATIONS, handler=self._changed)
        self._wake = asyncio.Event()
        self._current: dict[tuple[str, str], Aggregated] = {}
        self._by_kind: dict[tuple[str, str], Aggregated] = {}
        self._listeners: list[Callable[[Sequence[Aggregated]], None]] = []
        self._unsettled: dict[tuple[str, str], str] = {}
        self._served: dict[str, Served] = {}
        self._hiding: dict[str, bool] = {}  # by name: the host had objects that are not shown, at the last look
        self.resolved = asyncio.Event()  # the first complete look is done
        fleet.subscribe(self)

    def lookup(self, group: str, resource: str) -> Aggregated | None:
        """Return the aggregation of a resource (events.k8s.io events are core events), or None."""
        return self._current.get(canonical(group, resource))

    def unsettled(self, group: str, resource: str) -> str | None:
        """Why it cannot be told yet whether a resource is aggregated; None when `lookup` is right.

        The host's answer instead would be wrong: its versions are others, so that a watch would stay silent.
        """
        return self.ready() or self._unsettled.get(canonical(group, resource))

    def lookup_kind(self, api_version: str, kind: str) -> Aggregated | None:
        """Return the aggregation of a kind, whatever the version in `api_version`."""
        group = api_version.rpartition("/")[0]
        return self._by_kind.get((group, kind))

    def all(self) -> list[Aggregated]:
        """Return the current set, ordered by resource key."""
        return sorted(self._current.values(), key=lambda one: one.key)

    def served_by(self, one: Aggregated) -> list[str]:
        """Names of the clusters that served the type at the last look."""
        served = self._served.get(one.name)
        return list(served.clusters) if served else []

    def warning(self, one: Aggregated) -> str | None:
        """What who lists a custom type should know; of Kubernetes' own the host's are its machinery, and no news."""
        if not self._hiding.get(one.name) or not is_custom(one.group):
            return None
        return f"{one.resource} of the host are not shown: APIAggregation {one.name!r} has no includeHost"

    def on_change(self, listener: Callable[[Sequence[Aggregated]], None]) -> None:
        """Call `listener` with the whole set, now and after each change."""
        self._listeners.append(listener)
        if self.resolved.is_set():
            listener(self.all())

    async def run(self) -> None:
        """Follow the host and the fleet until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run(), name="informer:apiaggregations")
            group.create_task(self._resolve_loop(), name="aggregations:resolve")

    async def engaged(self, member: Member) -> None:
        """A cluster joined: it may serve what nobody served before."""
        self._wake.set()

    async def updated(self, member: Member, old: Member) -> None:
        """A cluster changed: it may have come back with other types."""
        self._wake.set()

    async def disengaged(self, member: Member) -> None:
        """A cluster left."""
        self._wake.set()

    def ready(self) -> str | None:
        """Reason while the first look is not done."""
        return (
            None
            if self.resolved.is_set()
            else f"apiaggregations are not read yet ({self._informer.last_error or 'waiting for the host'})"
        )

    def _changed(self, type_: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        if type_ != "MODIFIED" or old is None or old.get("spec") != obj.get("spec"):
            self._wake.set()

    async def _resolve_loop(self) -> None:
        await self._informer.synced.wait()
        while True:
            self._wake.clear()
            pending = await self._resolve()
            try:
                async with asyncio.timeout(RECHECK if pending else SETTLED):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _resolve(self) -> bool:
        """Work out the whole set anew; True while some type should be looked at again later."""
        clients = {name: member.client for name, member in self._fleet.members.items() if member.reachable}
        current: dict[tuple[str, str], Aggregated] = {}
        unsettled: dict[tuple[str, str], str] = {}
        fleet_known = self._fleet.synced.is_set()
        pending = not fleet_known
        objects = sorted(self._informer.store.values(), key=_age)
        answers = await asyncio.gather(*(self._look(obj, clients) for obj in objects))
        accepted: list[tuple[str, str, str]] = []
        for obj, served in zip(objects, answers, strict=True):
            name = obj["metadata"]["name"]
            self._served[name] = served
            pending |= not served.clusters or bool(served.unknown)
            condition = self._take(obj, served, current)
            if condition[1] == "NotServed" and (served.unknown or not fleet_known):
                spec = obj["spec"]
                unsettled[canonical(spec.get("group", ""), spec["resource"])] = (
                    f"no cluster has said yet what {spec['resource']} are"
                )
            accepted.append(condition)
        self._unsettled = unsettled
        if current != self._current or not self.resolved.is_set():
            self._current = current
            self._by_kind = {(one.group, one.kind): one for one in current.values()}
            self.resolved.set()
            for listener in self._listeners:
                listener(self.all())
        # What waits for the first look does not wait for the host's lists and writes.
        shown = await asyncio.gather(*(self._host_shown(obj) for obj in objects))
        for obj, condition, served, host in zip(objects, accepted, answers, shown, strict=True):
            await self._report(obj, condition, served, host)
        return pending

    async def _host_shown(self, obj: dict[str, Any]) -> tuple[str, str, str] | None:
        name = obj["metadata"]["name"]
        one = next((one for one in self._current.values() if one.name == name), None)
        if one is None:
            self._hiding.pop(name, None)
            return None
        shown = await host_shown(self._host, one)
        if shown is not None:
            self._hiding[name] = shown[0] == "False"
        return shown

    async def _look(self, obj: dict[str, Any], clients: dict[str, KubeClient]) -> Served:
        spec = obj["spec"]
        asked = dict(clients)
        if spec.get("includeHost"):
            asked[HOST] = self._host
        served = await find_served(asked, spec.get("group", ""), spec["version"], spec["resource"])
        # What is away has not said that it lacks the type.
        served.unknown += [name for name, member in self._fleet.members.items() if not member.reachable]
        return served

    def _take(
        self, obj: dict[str, Any], served: Served, current: dict[tuple[str, str], Aggregated]
    ) -> tuple[str, str, str]:
        """Add the aggregation to `current` if it can be; return its Accepted condition (status, reason, message)."""
        spec, name = obj["spec"], obj["metadata"]["name"]
        key = canonical(spec.get("group", ""), spec["resource"])
        known = self._current.get(key)
        if not served.kind and known is not None and known.name == name:
            # Nobody can say now (members that start, or are away): a type that was known stays what it was.
            served = replace(served, kind=known.kind, namespaced=known.namespaced)
        kind = spec.get("kind") or served.kind
        if not kind:
            return (
                "False",
                "NotServed",
                (
                    f"no cluster serves {spec['resource']} in {spec.get('group') or 'core'}/{spec['version']}; "
                    "install the type on a member, or set spec.kind and spec.scope"
                ),
            )
        namespaced = spec["scope"] == "Namespaced" if spec.get("scope") else served.namespaced
        if key in current:
            return (
                "False",
                "Duplicate",
                f"the older APIAggregation {current[key].name!r} has this resource already",
            )
        if spec.get("group", "") != key[0]:
            return (
                "False",
                "Alias",
                f"these objects are aggregated as {key[1]} of group {key[0] or 'core'}: name that instead",
            )
        try:
            current[key] = aggregated(obj, kind, namespaced)
        except ValueError as error:
            return "False", "Invalid", str(error)
        return "True", "Accepted", f"{kind} objects of the selected clusters are shown merged"

    async def _report(
        self, obj: dict[str, Any], accepted: tuple[str, str, str], served: Served,
        host: tuple[str, str, str] | None,
    ) -> None:  # fmt: skip
        """Write the status when it says something new."""
        where = ", ".join(name or "the host" for name in served.clusters)
        serving = (
            ("True", "Served", f"served by {where}")
            if served.clusters
            else ("False", "NotServed", "no reachable cluster serves the type")
        )
        old = {one["type"]: one for one in (obj.get("status") or {}).get("conditions") or []}
        conditions = [_condition(old, "Accepted", *accepted), _condition(old, "Served", *serving)]
        if host is not None:
            conditions.append(_condition(old, HOST_SHOWN, *host))
        elif HOST_SHOWN in old and accepted[0] == "True":
            conditions.append(old[HOST_SHOWN])  # the host did not say: what it said before
        if conditions == (obj.get("status") or {}).get("conditions"):
            return
        name = obj["metadata"]["name"]
        try:
            await self._host.patch(
                API_AGGREGATIONS, None, name, {"status": {"conditions": conditions}}, sub="status"
            )
        except StatusError as error:
            log.warning("status of APIAggregation %s not written: %s", name, error.message)


def _age(obj: dict[str, Any]) -> tuple[str, str]:
    return obj["metadata"].get("creationTimestamp", ""), obj["metadata"]["name"]


def _condition(old: dict[str, Any], type_: str, status: str, reason: str, message: str) -> dict[str, Any]:
    before = old.get(type_)
    if before and (before["status"], before["reason"], before["message"]) == (status, reason, message):
        return dict(before)
    since = before["lastTransitionTime"] if before and before["status"] == status else _now()
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
