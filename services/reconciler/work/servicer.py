"""`ReconcilerService`: streams of workers, and questions to indexes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc

from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common.access import GROUP, Access, Attributes
from services.common.errors import StatusError, forbidden, unauthorized
from services.common.grpc import abort, abort_bad_request, abort_status
from services.common.kube.client import KubeClient
from services.common.kube.reviews import User
from services.common.recheck import Recheck
from services.reconciler.work.desk import LocalDesk
from services.reconciler.work.handout import duration
from services.reconciler.work.hub import Hub
from services.reconciler.work.mapping import HOST
from services.reconciler.work.peers import Peers
from services.reconciler.work.probe import Found, Probe
from services.reconciler.work.query import query
from services.reconciler.work.register import decode
from services.reconciler.work.session import MESSAGE_MAX, Session
from services.reconciler.work.spec import BadRegister, ControllerSpec, WorkerSpec

log = logging.getLogger(__name__)

FIRST_WITHIN = 30.0
"""Seconds that a worker has to send Register."""
RESERVED = "reclock-"
"""Beginning of the names of the built-in controllers: a registration in such a name would replace theirs."""
BROKEN_SHOWS_WITHIN = 0.1
"""Seconds in which gRPC tells a stream that broke from one that was closed: both look like its end at first."""


@dataclass(slots=True)
class Parts:
    """What the servicers share; `hub` and `peers` are there once the host is."""

    lease: float
    access: Access = field(default_factory=Access)
    recheck: Recheck = field(default_factory=Recheck)
    hub: Hub | None = None
    peers: Peers | None = None
    sessions: set[Session] = field(default_factory=set)
    stopping: bool = False

    def missing(self) -> str:
        """Why workers cannot be served yet; "" when they can."""
        if self.stopping:
            return "this replica stops: connect to another one"
        if self.hub is None or self.peers is None:
            return "the host has not been read yet"
        return "" if self.hub.fleet.synced.is_set() else "the fleet is not known yet"


class WorkServicer(rpc.ReconcilerServiceServicer):
    """One generator for each worker; it writes, a task of its own reads."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._probe = Probe()

    async def Work(
        self, request_iterator: AsyncIterator[pb.WorkRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WorkResponse]:
        """See the contract."""
        requests = aiter(request_iterator)
        session, registered = await self._open(requests, context)
        self._parts.sessions.add(session)
        orderly = False
        reader = asyncio.create_task(self._read(session, requests), name=f"work/read {session.worker.name}")
        try:
            async with self._parts.recheck.hold(context, lambda: self._still_authorised(session, context)):
                yield registered
                while (message := await session.next()) is not None:
                    yield message
            orderly = not context.cancelled() and not session.replaced and not session.failed and session.refused is None
        finally:
            reader.cancel()
            self._parts.sessions.discard(session)
            self._peers.leave(session)
            for desk in list(session.desks):
                desk.close(orderly=orderly)
            log.info("controller %s: worker %s is gone%s", session.spec.name, session.worker.name, "" if orderly else ", its stream broke")
        if session.refused is not None:
            await abort_status(context, session.refused)
        if session.failed:
            await abort(context, grpc.StatusCode.INTERNAL, "the stream could not be read on", {"reason": "Failed"})
        if session.replaced:
            await abort(context, grpc.StatusCode.ABORTED, f"worker {session.worker.name!r} has connected anew", {"reason": "Replaced"})

    async def _read(self, session: Session, requests: AsyncIterator[pb.WorkRequest]) -> None:
        try:
            async for message in requests:
                if message.resume.sole:
                    await self._may_lead(session.user, session.spec.name, "say Resume.sole")
                    session.sole = True
                session.say(message)
                await session.room()
            await asyncio.sleep(BROKEN_SHOWS_WITHIN)
        except StatusError as error:
            session.refused = error
        except Exception:
            # The worker must see the end of it: it would wait for answers for ever.
            log.exception("controller %s: reading from worker %s failed", session.spec.name, session.worker.name)
            session.failed = True
        session.finish()

    async def _open(
        self, requests: AsyncIterator[pb.WorkRequest], context: grpc.aio.ServicerContext
    ) -> tuple[Session, pb.WorkResponse]:
        """Read and judge the registration; every refusal ends the call."""
        if missing := self._parts.missing():
            await abort(context, grpc.StatusCode.UNAVAILABLE, missing, {"reason": "NotReady"})
        register = await self._first(requests, context)
        try:
            spec, worker = decode(register)
            user = await self._parts.access.user(context)
            if user is None:
                raise unauthorized("plaintext without a token, and no local user is configured")
            await self._authorise(user, spec)
            hub = self._hub
            hub.check(spec, worker.name, user.name)
            found = await self._probe.check(spec.sources, reachable(hub, spec))
            if found.violations:
                await abort_bad_request(context, grpc.StatusCode.FAILED_PRECONDITION, found.violations)
            return self._seat(spec, worker, user, register, found)
        except BadRegister as error:
            await abort_bad_request(context, grpc.StatusCode.INVALID_ARGUMENT, error.violations)
        except StatusError as error:
            await abort_status(context, error)

    async def _first(self, requests: AsyncIterator[pb.WorkRequest], context: grpc.aio.ServicerContext) -> pb.Register:
        try:
            async with asyncio.timeout(FIRST_WITHIN):
                first = await anext(requests)
        except (TimeoutError, StopAsyncIteration):
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Register; none came")
        if first.WhichOneof("message") != "register":
            await abort_bad_request(context, grpc.StatusCode.INVALID_ARGUMENT, [("message", "the first message must be Register")])
        if first.ByteSize() > MESSAGE_MAX:
            await abort_bad_request(context, grpc.StatusCode.INVALID_ARGUMENT, [("register", f"{first.ByteSize()} bytes: allowed are {MESSAGE_MAX}")])
        return first.register

    async def _authorise(self, user: User, spec: ControllerSpec) -> None:
        """403 unless the worker may work on the controller and see all its sources."""
        access = self._parts.access
        if spec.name.startswith(RESERVED) and not access.is_own(user):
            raise forbidden(
                f"controller {spec.name!r}: names that begin with {RESERVED!r} are the built-in controllers': choose another one"
            )
        await access.require(user, Attributes("work", GROUP, "controllers", name=spec.name))
        for source in spec.sources:
            for namespace in () if source.is_channel else source.namespaces or ("",):
                for verb in ("list", "watch"):
                    what = Attributes(verb, source.resource.group, source.resource.resource, namespace=namespace)
                    await access.require(user, what)
        if spec.leaving:
            await self._may_lead(user, spec.name, "set leaving_clusters")

    async def _may_lead(self, user: User, controller: str, to: str) -> None:
        """403 unless the user may end others' work on the controller, and keep clusters that are being emptied."""
        try:
            await self._parts.access.require(user, Attributes("lead", GROUP, "controllers", name=controller))
        except StatusError as error:
            if error.code == 403:
                raise forbidden(f"to {to}: {error.message}") from error
            raise

    async def _still_authorised(self, session: Session, context: grpc.aio.ServicerContext) -> None:
        """As when it registered: the token, and every right."""
        user = await self._parts.access.user(context)
        if user is None or user.name != session.user.name:
            raise unauthorized("the token is another user's now")
        await self._authorise(user, session.spec)
        if session.sole:
            await self._may_lead(user, session.spec.name, "go on as the sole worker")

    def _seat(
        self, spec: ControllerSpec, worker: WorkerSpec, user: User, register: pb.Register, found: Found
    ) -> tuple[Session, pb.WorkResponse]:
        hub, peers, lease = self._hub, self._peers, self._parts.lease
        session = Session(spec, worker, user, register, lease, peers.ownerless)
        LocalDesk(hub, session)
        peers.serve(session)
        log.info("controller %s: worker %s (%s) has come", spec.name, worker.name, user.name)
        return session, pb.WorkResponse(registered=pb.Registered(
            lease=duration(lease), heartbeat=duration(lease / 3), worker=worker.name,
            protocol_version=worker.version, warnings=found.warnings, replica=hub.replica,
        ))  # fmt: skip

    @property
    def _hub(self) -> Hub:
        assert self._parts.hub is not None
        return self._parts.hub

    @property
    def _peers(self) -> Peers:
        assert self._parts.peers is not None
        return self._parts.peers

    async def QueryIndex(self, request: pb.QueryIndexRequest, context: grpc.aio.ServicerContext) -> pb.QueryIndexResponse:
        """See the contract."""
        if missing := self._parts.missing():
            await abort(context, grpc.StatusCode.UNAVAILABLE, missing, {"reason": "NotReady"})
        try:
            return await query(self._hub, self._peers, request)
        except BadRegister as error:
            await abort_bad_request(context, grpc.StatusCode.INVALID_ARGUMENT, error.violations)
        except StatusError as error:
            await abort_status(context, error)


def reachable(hub: Hub, spec: ControllerSpec) -> dict[str, KubeClient]:
    """Clusters that can be asked about a registration."""
    members = {
        member.name: member.client for member in hub.fleet.members.values()
        if member.leaving_since is None and member.reachable and spec.cluster_selector.matches(member.labels)
    }  # fmt: skip
    return {HOST: hub.host, **members}
