"""Reads of aggregated resources: what the front and the writes call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from aiohttp import web

from _fastpath.listing import version_of
from _fastpath.proto import MAGIC
from _fastpath.splice import SpliceError
from services.aggregator.reads.access import Identity, MemberAccess
from services.aggregator.reads.codec import AnyMeta, codec_of, names_of
from services.aggregator.reads.fanout import Fanout
from services.aggregator.reads.feed_pool import FeedPool
from services.aggregator.reads.getter import Getter, is_status
from services.aggregator.reads.lister import Lister
from services.aggregator.reads.negotiate import JSON_TYPE, Negotiated
from services.aggregator.reads.presenter import REFERENCES, Presenter
from services.aggregator.reads.query import check_version, decode_list, decode_watch, include
from services.aggregator.reads.representations import Representations
from services.aggregator.reads.respond import Outgoing, pretty
from services.aggregator.reads.scope import Scope
from services.aggregator.reads.tokens import TokenCodec
from services.aggregator.reads.watch import WatchSession
from services.aggregator.types import Aggregated, Call
from services.common.errors import MemberUnreachable, StatusError, not_acceptable, unavailable

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock
    from services.aggregator.clock.clocks import ResourceClocks
    from services.aggregator.owners import Owners


class Reads:
    """Get, list and watch of every aggregated resource, and the showing of what members answer to writes.

    `token_secret` signs continue tokens: all replicas and restarts of a fleet need the same.
    """

    def __init__(
        self, clock: ResourceClocks, owners: Owners, *, fleet_id: str, token_secret: bytes, identity: Identity
    ) -> None:
        self._clock, self._owners = clock, owners
        self._scope = Scope(clock, owners, MemberAccess(identity))
        self._lister = Lister(self._scope, TokenCodec(fleet_id, token_secret))
        self._getter = Getter(self._scope)
        self._pool = FeedPool()
        self._fanout = Fanout(self._pool.release)
        self._forms = Representations()
        self._presenters: dict[str, Presenter] = {}

    def _presenter(self, aggregated: Aggregated) -> Presenter:
        found = self._presenters.get(aggregated.key)
        if found is None:
            found = self._presenters[aggregated.key] = Presenter(self._owners, aggregated)
        return found

    async def _in_a_form(
        self, call: Call, aggregated: Aggregated, answer: Callable[[Negotiated], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer in the form that the client likes best; in the next where a member does not have that one."""
        form = self._forms.negotiate(call, aggregated)
        try:
            return await answer(form)
        except StatusError as error:
            if error.code != 406 or not form.protobuf:
                raise
            self._forms.refuse(call, aggregated, form)
            form = self._forms.negotiate(call, aggregated)
        return await answer(form)

    def write_form(self, call: Call, aggregated: Aggregated) -> Negotiated:
        """The form of a write's answer; StatusError 406."""
        return self._forms.of_write(call, _served(call, aggregated))

    async def get(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """GET of one object, or of a subresource that is the object too (status)."""
        aggregated = _served(call, aggregated)
        return await self._in_a_form(call, aggregated, lambda form: self._get(call, aggregated, form))

    async def _get(self, call: Call, aggregated: Aggregated, form: Negotiated) -> web.StreamResponse:
        if form.as_list:
            raise not_acceptable("you requested PartialObjectMetadataList, but the requested object is not a list")
        query = call.query
        version = query.get("resourceVersion", "")
        check_version(version)
        shape = include(query) if form.kind == "table" else ""
        body, warnings = await self._getter.get(
            call, aggregated, form, version, shape, self._presenter(aggregated), call.info.subresource
        )
        out = Outgoing(call, form)
        out.member_warnings = list(warnings)
        await out.add([pretty(body) if form.pretty else body])
        return await out.finish()

    async def list(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """GET of a collection."""
        aggregated = _served(call, aggregated)
        options = decode_list(call.query, call.info, aggregated)
        presenter = self._presenter(aggregated)
        return await self._in_a_form(
            call, aggregated, lambda form: self._lister.list(call, aggregated, form, options, presenter)
        )

    async def watch(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """Watch of a collection or of one object."""
        aggregated = _served(call, aggregated)
        options = decode_watch(call.query, call.info, aggregated)

        async def serve(form: Negotiated) -> web.StreamResponse:
            session = WatchSession(
                call, aggregated, form, options, scope=self._scope, lister=self._lister, pool=self._pool, fanout=self._fanout,
                presenter=self._presenter(aggregated), refuse=lambda: self._forms.refuse(call, aggregated, form),
            )  # fmt: skip
            return await session.serve()

        return await self._in_a_form(call, aggregated, serve)

    async def show(
        self, clock: ResourceClock, cluster: str, body: bytes, accept: str = "", *, timeout: float = 5.0,
        path: str = "",
    ) -> bytes:  # fmt: skip
        """A member's answer to a write as clients see it: once the log has its version, under that number.

        `path` on the member is what was written, where that is no whole object or of another version; `accept` the
        form of `body`.

        StatusError 504 when the log did not get it in time (the outcome is not known), 503 when the object
        was changed again in a way that passed this version over. A Status is returned as it is.
        """
        if is_status(body):
            return body
        meta = _scan(cluster, body)
        marker = await clock.wait_version(
            cluster, meta.namespace, meta.name, meta.uid, version_of(meta.version), timeout=timeout
        )
        if marker is None:
            return await self._newer(clock, cluster, body, path, accept)
        shown = await self.present(clock.aggregated, cluster, body, meta, marker.fleet)
        return codec_of(body).rewrap(body, shown)

    async def _newer(self, clock: ResourceClock, cluster: str, body: bytes, path: str, accept: str) -> bytes:
        """The write's state was passed over by a diff: what stands there now carries a number."""
        meta = _scan(cluster, body)
        member = clock.members.get(cluster)
        if member is None:
            raise unavailable(f"cluster {cluster} is leaving the fleet, try again")
        path = path or clock.aggregated.at().path(meta.namespace or None, meta.name)
        for _ in range(5):
            try:
                answer = await member.client.request("GET", path, headers={"Accept": accept or JSON_TYPE})
            except StatusError as error:
                if error.code != 404:
                    raise
                return await self._unnumbered(clock, cluster, body, meta)
            now = _scan(cluster, answer.body)
            if now.uid != meta.uid:
                return await self._unnumbered(clock, cluster, body, meta)  # another object of that name by now
            marker = await clock.wait_version(
                cluster, now.namespace, now.name, now.uid, version_of(now.version), timeout=5.0
            )
            if marker is not None and not marker.deleted:
                shown = await self.present(clock.aggregated, cluster, answer.body, now, marker.fleet)
                return codec_of(answer.body).rewrap(answer.body, shown)
        raise unavailable(f"cluster {cluster}: its events lag behind, try again")

    async def _unnumbered(self, clock: ResourceClock, cluster: str, body: bytes, meta: AnyMeta) -> bytes:
        """What was written and is gone since: the write was done, which an error would deny."""
        codec = codec_of(body)
        return codec.rewrap(body, codec.without_version(await self.present(clock.aggregated, cluster, body, meta, 0)))

    async def present(
        self, aggregated: Aggregated, cluster: str, body: bytes, meta: AnyMeta, version: int
    ) -> bytes:
        """An object as clients see it, under a number that the caller has checked (0: to be taken out)."""
        if body.startswith(MAGIC):  # what stands where depends on the type's group: events are of two
            group = names_of(body)[0].rpartition("/")[0]
            aggregated = replace(aggregated, group=group) if group in REFERENCES else aggregated
        return await self._presenter(aggregated).show(cluster, body, meta, version, meta.end)

    @property
    def owes(self) -> bool:
        """Was a state passed over for a newer one that the log has not named yet?"""
        return self._pool.owed.open

    async def close(self) -> None:
        """End all payload feeds, and the walks that wait for their next page."""
        await self._lister.close()
        await self._fanout.close()
        await self._pool.close()


def _served(call: Call, aggregated: Aggregated) -> Aggregated:
    """The resource as it was asked for: core events are events.k8s.io's too, under the same markers."""
    if call.info.group == aggregated.group or call.info.resource != aggregated.resource:
        return aggregated
    return replace(aggregated, group=call.info.group, version=call.info.version)


def _scan(cluster: str, body: bytes) -> AnyMeta:
    try:
        meta = codec_of(body).scan_answer(body)
        version_of(meta.version)
        return meta
    except SpliceError as error:
        raise MemberUnreachable(f"cluster {cluster}: its answer is no object: {error}") from error


__all__ = ["Reads"]
