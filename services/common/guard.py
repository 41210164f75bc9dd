"""Holds every call of a gRPC server against `callers.RULES`, before the servicer sees it.

There are two of them: on the port of the services (mutual TLS, or plaintext of this machine), and on the port of users
(TLS of the server alone), where who has no valid token is turned away before a byte of the request is read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from services.common.aborts import abort_status
from services.common.access import Access, has_certificate, names_of, token_of
from services.common.callers import HEALTH, PLUMBING, RULES, On, Rule, refusal, unnamed
from services.common.errors import StatusError, cut, forbidden
from services.common.kube.reviews import User
from services.common.recheck import Recheck
from services.common.rpc_handlers import wrapped

audit = logging.getLogger("reclock.audit")

Continuation = Callable[[Any], Awaitable[Any]]
Judge = Callable[[Any, Any], Awaitable["Review | None"]]
"""Given request and context: judges the call, ends it when it is refused, and says how to judge it again."""
Review = Callable[[], Awaitable[None]]


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """On the port of the services. `fellow` knows another replica of the same service in plaintext."""

    def __init__(self, access: Access, recheck: Recheck, fellow: Callable[[Any], bool] = lambda context: False) -> None:
        self.access = access
        self.recheck = recheck
        self.fellow = fellow

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        """See grpc.aio."""
        handler, method = await continuation(details), str(details.method)
        if handler is None or method.startswith(PLUMBING):
            return handler

        async def judge(request: Any, context: Any) -> Review | None:
            if has_certificate(context):
                if reason := refusal(names_of(context), method):
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, cut(reason))
                return None
            if method in RULES and self.fellow(context):
                return None
            try:
                return await self._judge_user(method, await self.access.user(context), request, context)
            except StatusError as error:
                await abort_status(context, error)

        return guarded(handler, method, judge, self.recheck)

    async def _judge_user(self, method: str, user: User | None, request: Any, context: Any) -> Review | None:
        rule = _rule_of(method)
        if user is None or (user is self.access.local and rule.users is None):
            return None  # this machine's own, in plaintext
        return await judge_user(self.access, rule, method, user, request, lambda: self.access.user(context))


class UserGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """On the port of users: a bearer token, and the host's RBAC."""

    def __init__(self, access: Access, recheck: Recheck) -> None:
        self.access = access
        self.recheck = recheck

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        """See grpc.aio."""
        method = str(details.method)
        if method == HEALTH:
            return await continuation(details)
        try:
            user = await self._user(details.invocation_metadata or ())
        except StatusError as error:
            return _refusing(error)
        handler = await continuation(details)
        if handler is None or method.startswith(PLUMBING):
            return handler

        async def judge(request: Any, context: Any) -> Review | None:
            try:
                rule = _rule_of(method)
                return await judge_user(
                    self.access, rule, method, user, request, lambda: self._user(context.invocation_metadata() or ())
                )
            except StatusError as error:
                await abort_status(context, error)

        return guarded(handler, method, judge, self.recheck)

    async def _user(self, metadata: Any) -> User:
        token = token_of(metadata)
        if not token:
            raise StatusError(401, None, "a bearer token is needed, as metadata `authorization: Bearer …`")
        return await self.access.by_token(token)


def _rule_of(method: str) -> Rule:
    rule = RULES.get(method)
    if rule is None:
        raise forbidden(unnamed(method))
    return rule


async def judge_user(
    access: Access, rule: Rule, method: str, user: User, request: Any, again: Callable[[], Awaitable[User | None]]
) -> Review | None:
    """StatusError unless `user` may call; returns the same question for later, where it is asked here."""
    if rule.users is None:
        raise forbidden(f"{method} is between services: user {user.name!r} may not call it")
    if not isinstance(rule.users, On):
        return None
    wanted = rule.users.attributes(request)

    async def review(who: User | None) -> None:
        for what in wanted:
            if who is not None:
                await access.require(who, what)

    async def later() -> None:
        await review(await again())

    await review(user)
    if not rule.users.reads:
        fields = {"user": user.name, "rpc": method, **{k: v for k, v in wanted[0]._asdict().items() if v and k != "verb"}}
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in fields.items())
        audit.info("%s", text, extra={"fields": {"audit": fields}})
    return later


def guarded(handler: Any, method: str, judge: Judge, recheck: Recheck) -> Any:
    """`handler`, run after `judge`; a stream of answers is judged again while it lasts."""

    def unary(behaviour: Any) -> Any:
        async def run(request: Any, context: Any) -> Any:
            await judge(request, context)
            return await behaviour(request, context)

        return run

    def stream(behaviour: Any) -> Any:
        async def run(request: Any, context: Any) -> AsyncIterator[Any]:
            review = await judge(request, context)
            if review is None:
                async for response in behaviour(request, context):
                    yield response
                return
            async with recheck.hold(context, review):
                async for response in behaviour(request, context):
                    yield response

        return run

    return wrapped(handler, unary, stream)


def _refusing(error: StatusError) -> Any:
    """A handler that ends the call. A stream of requests, whatever the call is: so none is waited for or read."""

    async def refuse(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await abort_status(context, error)
        yield b""

    return grpc.stream_stream_rpc_method_handler(refuse)
