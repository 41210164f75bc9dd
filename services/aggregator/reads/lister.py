"""Lists: one fleet version, every member at its own version of that moment, streamed in key order."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aiohttp import web

from _fastpath import proto
from services.aggregator.clock.position import Position
from services.aggregator.clock.view import Snapshot
from services.aggregator.reads.codec import JSON, PROTOBUF
from services.aggregator.reads.envelopes import Envelope, ProtoEnvelope
from services.aggregator.reads.kept import KeptWalks
from services.aggregator.reads.negotiate import Negotiated
from services.aggregator.reads.presenter import Presenter
from services.aggregator.reads.query import EXACT, ReadOptions
from services.aggregator.reads.respond import Outgoing
from services.aggregator.reads.scope import LeftOut, Scope
from services.aggregator.reads.spool import Spool
from services.aggregator.reads.tokens import Token, TokenCodec, scope_of, short
from services.aggregator.reads.walk import BrokeOff, Plan, Restart, Walk
from services.aggregator.types import Aggregated, Call
from services.common.errors import MemberUnreachable, StatusError, expired, not_acceptable, unavailable

if TYPE_CHECKING:
    from services.aggregator.clock.clock import ResourceClock

log = logging.getLogger(__name__)

ATTEMPTS = 8  # lists begun anew before giving up
BATCH = 128  # objects per step
MAX_PAGE = 10_000  # objects of a page, whatever `limit` says
PAGE_BYTES = 16 * 1024 * 1024  # a page ends early above this: memory does not depend on `limit`
TOO_OLD = "The resourceVersion for the provided list is too old."


@dataclass(slots=True)
class Request:
    """One list request on its way."""

    call: Call
    aggregated: Aggregated
    form: Negotiated
    options: ReadOptions
    clock: ResourceClock
    presenter: Presenter
    token: Token | None = None
    broken: dict[str, str] = field(default_factory=dict)
    """Members whose answers broke off in an earlier try, and why: the next goes without them."""
    kept: bool = False
    """Does the walk wait for its next page? Then it is not ours any more."""

    @property
    def scope(self) -> str:
        """Names the walk that its continue tokens belong to."""
        options = self.options
        return scope_of(self.aggregated.key, self.call.info.namespace, options.labels.text, options.fields.text)


class Lister:
    """Answers lists; opens walks for watches that begin with the present state."""

    def __init__(self, scope: Scope, codec: TokenCodec) -> None:
        self._scope, self._codec = scope, codec
        self._kept = KeptWalks()

    async def list(
        self, call: Call, aggregated: Aggregated, form: Negotiated, options: ReadOptions, presenter: Presenter
    ) -> web.StreamResponse:
        """Answer a list; StatusError before anything was sent."""
        if form.kind == "partial" and not form.as_list:
            raise not_acceptable("you requested PartialObjectMetadata, but the requested object is a list")
        request = Request(call, aggregated, form, options, self._scope.resource(aggregated), presenter)
        if options.continued:
            request.token = self._codec.decode(options.continued, request.scope)
        for attempt in range(ATTEMPTS):
            left = LeftOut()
            out = Outgoing(call, form)
            try:
                walk = await self.open(request, left)
                request.kept = False
                try:
                    return await self._send(request, walk, out, left)
                finally:
                    if not request.kept:
                        await walk.close()
            except Restart as reason:
                log.info("list of %s: begun anew: %s", aggregated.key, reason)
                if out.started:
                    out.abort()
                    raise ConnectionResetError("the list was broken off") from reason
                if request.token is not None and request.token.version:
                    raise self._codec.inconsistent(request.token) from reason
            except StatusError as error:
                if out.started:
                    out.abort()
                if out.started or not isinstance(error, BrokeOff):
                    raise
                request.broken[error.cluster] = error.message
            await asyncio.sleep(0.02 * attempt)
        raise unavailable(f"{aggregated.key}: no consistent list could be had, try again")

    async def close(self) -> None:
        """End what waits for clients to come back."""
        await self._kept.close()

    async def open(self, request: Request, left: LeftOut) -> Walk:
        """Fix the version and ask the members; Restart when another version must be taken."""
        snapshot = await self._snapshot(request)
        plan = await self._plan(request, snapshot, left)
        if request.token is not None:
            kept = self._kept.take(request.options.continued, plan, request.clock)
            if kept is not None:
                return kept
        walk = Walk(request.clock, request.presenter, plan)
        try:
            await walk.open()
            for cluster, error in walk.failed.items():
                await self._judge(request, cluster, error, left)
            await self._scope.close_gaps(request.aggregated, request.clock, left)
        except BaseException:
            await walk.close()
            raise
        return walk

    async def _snapshot(self, request: Request) -> Snapshot:
        options, clock, token = request.options, request.clock, request.token
        if token is not None and token.version:
            if token.version > clock.head:  # of a replica whose log is ahead of this one's
                await clock.snapshot(linearizable=False, minimum=token.version)
            return self._of_token(request, token)
        if token is None and options.number:
            if options.match == EXACT or (not options.match and options.limit):
                try:
                    return await clock.vector_at(options.number)
                except StatusError as error:
                    raise expired(TOO_OLD) if error.code == 410 else error from error
            return await clock.snapshot(linearizable=False, minimum=options.number)
        return await clock.snapshot(linearizable=options.version != "0")

    def _of_token(self, request: Request, token: Token) -> Snapshot:
        """The walk's vector; 410 when a member left or came back as another one, or the version is too old."""
        clock = request.clock
        positions = {}
        for cluster, (incarnation, version) in token.members.items():
            position = clock.members[cluster].position if cluster in clock.members else None
            if position is None or short(position.incarnation) != incarnation or token.version < clock.floor:
                raise self._codec.inconsistent(token)
            positions[cluster] = Position(position.incarnation, version, version, False)
        return Snapshot(token.version, positions, [])

    async def _plan(self, request: Request, snapshot: Snapshot, left: LeftOut) -> Plan:
        call, aggregated, options, clock = request.call, request.aggregated, request.options, request.clock
        clusters = [name for name in self._scope.asked(clock, snapshot, left) if name not in request.broken]
        left.away.update(request.broken)
        lacking = await self._scope.lacking(call, aggregated, clock, clusters)
        left.denied.update(lacking)
        clusters = [name for name in clusters if name not in lacking]
        clusters = self._scope.node_scope(aggregated, options, clusters)
        token, form = request.token, request.form
        query = {"labelSelector": options.labels.text, "fieldSelector": options.fields.text}
        if form.kind == "table":
            # Without its metadata a row has neither key nor version.
            query["includeObject"] = "Metadata" if options.include == "None" else options.include
        limited = options.limit if options.version != "0" else 0
        return Plan(
            version=snapshot.version,
            positions={cluster: snapshot.members[cluster] for cluster in clusters},
            clients={cluster: clock.members[cluster].client for cluster in clusters},
            path=aggregated.at(call.info.version).path(call.info.namespace or None),
            namespace=call.info.namespace if aggregated.namespaced else "",
            query={key: value for key, value in query.items() if value},
            headers={"Accept": form.accept(many=True)},
            table=form.kind == "table",
            codec=PROTOBUF if form.protobuf else JSON,
            after=token.after if token else "",
            limit=min(limited, MAX_PAGE),
            field_selectors=self._scope.field_selectors(options, clusters),
            member_headers=self._scope.access.headers(call, aggregated),
        )

    async def _judge(self, request: Request, cluster: str, error: StatusError, left: LeftOut) -> None:
        """What a member's failure means for the list."""
        if error.code == 404:
            if self._has_objects(request, cluster):
                left.away[cluster] = error.message
            return  # it does not serve the type, or not in this version: it counts as empty
        if error.code == 410 or (error.code == 504 and not isinstance(error, MemberUnreachable)):
            # What it listed last was compacted, or it was set back: its feed must list anew.
            if request.token is not None and request.token.version:
                raise self._codec.inconsistent(request.token)
            if request.options.match == EXACT or (request.options.number and request.options.limit):
                raise expired(TOO_OLD)
            await request.clock.refresh(cluster)
            raise Restart(f"{cluster}: {error.message}")
        if error.code == 403 and request.aggregated.authorization == "Member":
            left.denied[cluster] = error.message
        elif error.code in (400, 406, 422):
            raise error
        else:
            left.away[cluster] = error.message

    @staticmethod
    def _has_objects(request: Request, cluster: str) -> bool:
        """Has the log objects of a member that says that it has no such type? Clients must not lose them over a
        proxy's 404; where the type has gone indeed, the log will say so."""
        clock = request.clock
        asked = request.call.info.version or request.aggregated.version
        if asked != request.aggregated.version:
            return False
        return any(marker.cluster == cluster for marker in clock.iter_markers())

    async def _send(
        self, request: Request, walk: Walk, out: Outgoing, left: LeftOut
    ) -> web.StreamResponse:
        request.call.warnings.extend(w for w in left.warnings() if w not in request.call.warnings)
        out.member_warnings = walk.warnings
        envelope = ProtoEnvelope(request, walk) if request.form.protobuf else Envelope(request, walk)
        if walk.plan.limit:
            return await self._page(request, walk, out, envelope)
        if isinstance(envelope, ProtoEnvelope):
            return await self._spooled(request, walk, out, envelope)
        await out.add([envelope.begin("", None)])
        first = True
        while (batch := await walk.bodies(BATCH)) is not None:
            if batch:
                await out.add(envelope.items(batch, first))
                first = False
        await out.add([envelope.end(first)])
        return await out.finish()

    @staticmethod
    async def _spooled(
        request: Request, walk: Walk, out: Outgoing, envelope: ProtoEnvelope
    ) -> web.StreamResponse:
        """Protobuf: the length comes first, so the list is kept, packed, until it is whole.

        One that is too large for that was only measured: the members are asked again, for the same versions.
        """
        spool = Spool()
        while (batch := await walk.bodies(BATCH)) is not None:
            await spool.add(envelope.items(batch, first=False))
        if not spool.full:
            await out.add([envelope.begin("", None, spool.size)])
            async for block in spool.blocks():
                await out.add([block])
            await out.add([proto.ENVELOPE_TAIL])
            return await out.finish()
        await walk.close()  # what it had read ahead goes
        again = Walk(request.clock, request.presenter, replace(walk.plan, positions={
            source.cluster: walk.plan.positions[source.cluster] for source in walk.sources
        }))  # fmt: skip
        try:
            await again.open()
            if again.failed:
                raise Restart(f"no second answer of {', '.join(again.failed)}")
            await out.add([envelope.begin("", None, spool.size)])
            left = spool.size
            while (batch := await again.bodies(BATCH)) is not None:
                parts = envelope.items(batch, first=False)
                left -= sum(map(len, parts))
                if left < 0:
                    break
                await out.add(parts)
            if left:
                raise Restart("the second answers are of another length")
            await out.add([proto.ENVELOPE_TAIL])
            return await out.finish()
        finally:
            await again.close()

    async def _page(
        self, request: Request, walk: Walk, out: Outgoing, envelope: Envelope | ProtoEnvelope
    ) -> web.StreamResponse:
        """A page is kept until it is whole: its metadata, which stands first, says what is left."""
        parts: list[bytes] = []
        count = size = 0
        ended = False
        while count < walk.plan.limit and size < PAGE_BYTES:
            batch = await walk.bodies(min(BATCH, walk.plan.limit - count))
            if batch is None:
                ended = True
                break
            if batch:
                parts.extend(envelope.items(batch, not parts))
                count += len(batch)
                size += sum(map(len, batch))
        # A page that ended by its size leaves much unread: it is not read to be counted.
        more, left = (False, 0) if ended else await walk.rest(count=size < PAGE_BYTES)
        token = ""
        if more:
            members = {c: (short(p.incarnation), p.read) for c, p in walk.plan.positions.items()
                       if c not in walk.failed}  # fmt: skip
            token = self._codec.encode(Token(request.scope, walk.last_key, walk.plan.version, members))
            if size < PAGE_BYTES:
                early = request.token is not None
                average = size // max(1, count)
                request.kept = self._kept.keep(token, walk, request.clock, size=average, early=early)
        remaining = left if more and not request.options.selects else None
        head = envelope.begin(token, remaining, sum(map(len, parts)))
        await out.add([head, *parts, envelope.end(not parts)])
        return await out.finish()
