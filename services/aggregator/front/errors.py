"""Every error leaves the front as a `metav1.Status`; what is unknown is logged under an id and answered 500."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from email.utils import formatdate

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from services.aggregator.reads.negotiate import JSON_TYPE, PROTOBUF_TYPE, prefers_protobuf
from services.common.errors import (
    CredentialsRefused,
    MemberUnreachable,
    StatusError,
    internal,
    request_too_large,
    timeout,
)
from services.common.kube import status_pb

log = logging.getLogger(__name__)


def response(error: StatusError, accept: str = "") -> web.Response:
    """The answer that says `error`, in protobuf where the client prefers it (`Accept`)."""
    protobuf = prefers_protobuf(accept)
    headers = {"Content-Type": PROTOBUF_TYPE if protobuf else JSON_TYPE, "Cache-Control": "no-cache, private", "X-Content-Type-Options": "nosniff"}
    if error.retry_after is not None:
        headers["Retry-After"] = retry_after(error, error.retry_after)
    if error.code == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="kubernetes-master"'
    body = status_pb.encode(error.to_dict()) if protobuf else error.body() + b"\n"
    answer = web.Response(status=error.code, body=body, headers=headers)
    for text in error.warnings:
        answer.headers.add("Warning", text)
    return answer


def retry_after(error: StatusError, seconds: int) -> str:
    """The header's value. client-go repeats a request by itself, ten times, where it reads seconds; a date it leaves to
    people and to other clients: for a cluster that is away, or that may have done what was asked, that is the right one."""
    if isinstance(error, MemberUnreachable) and not error.passing:
        return formatdate(time.time() + seconds, usegmt=True)
    return str(seconds)


def from_exception(error: BaseException, what: str) -> StatusError:
    """Map anything that a handler raised; `what` (method and path) is for the log."""
    if isinstance(error, CredentialsRefused):
        return error.outside()
    if isinstance(error, StatusError):
        return error
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return request_too_large(f"Request entity too large: limit is {3 * 1024 * 1024}")
    if isinstance(error, web.HTTPException):
        return StatusError(error.status, None, error.reason or "")
    if isinstance(error, asyncio.TimeoutError):
        return timeout("the request did not complete in time")
    identifier = uuid.uuid4().hex[:12]
    log.error("%s: unexpected error, id %s", what, identifier, exc_info=error)
    return internal(f"unexpected error, id {identifier} in the aggregator's log")


def from_protocol(error: BaseException | None, status: int) -> StatusError:
    """Map what the HTTP parser refused."""
    if isinstance(error, LineTooLong):
        return StatusError(431, "RequestHeaderFieldsTooLarge", "request line or a header is too long")
    if isinstance(error, HttpProcessingError):
        return StatusError(400, "BadRequest", f"malformed HTTP request: {error.message.splitlines()[0]}")
    return StatusError(status, None, "malformed HTTP request" if status < 500 else "")


def forbidden_message(verb: str, *, user: str, path: str = "", resource: str = "", group: str = "",
                      namespace: str = "") -> str:  # fmt: skip
    """What Kubernetes says about a request that is not allowed; `resource` with its subresource."""
    if not resource:
        return f"User {_q(user)} cannot {verb} path {_q(path)}"
    where = f"in the namespace {_q(namespace)}" if namespace else "at the cluster scope"
    return f"User {_q(user)} cannot {verb} resource {_q(resource)} in API group {_q(group)} {where}"


def _q(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
