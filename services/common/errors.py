"""Errors as Kubernetes words them, and the one table that maps foreign errors to them.

A `StatusError` is a `metav1.Status`; whatever reaches a caller of Reclock is one. Bodies of members that are
no Status are dropped (they may be a proxy's login page) and long texts are cut.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp
import grpc
import msgspec

MAX_MESSAGE = 4096

REASONS: dict[int, str] = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    406: "NotAcceptable", 409: "Conflict", 410: "Expired", 413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError",
    503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip

GRPC_TO_HTTP: dict[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400, grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403, grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409, grpc.StatusCode.OUT_OF_RANGE: 410, grpc.StatusCode.FAILED_PRECONDITION: 422,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429, grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504, grpc.StatusCode.CANCELLED: 504,
    grpc.StatusCode.UNIMPLEMENTED: 405,
}  # fmt: skip

HTTP_TO_GRPC: dict[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED, 404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    409: grpc.StatusCode.ABORTED, 410: grpc.StatusCode.OUT_OF_RANGE, 413: grpc.StatusCode.INVALID_ARGUMENT,
    415: grpc.StatusCode.INVALID_ARGUMENT, 422: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED, 503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip


def cut(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return `text`, at most `limit` characters of it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


class StatusError(Exception):
    """A `metav1.Status` of failure: HTTP code, reason, message, details and how long to wait (seconds)."""

    def __init__(
        self,
        code: int,
        reason: str | None = None,
        message: str = "",
        *,
        details: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        self.code = code
        self.reason = REASONS.get(code, "") if reason is None else reason
        self.message = cut(message or self.reason)
        self.details = details
        self.retry_after = retry_after
        self.warnings: tuple[str, ...] = ()
        """`Warning` headers that a cluster sent with it, as they came."""
        super().__init__(self.message)

    def to_dict(self) -> dict[str, Any]:
        """Return the Status as Kubernetes writes it."""
        status: dict[str, Any] = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message,
        }  # fmt: skip
        if self.reason:
            status["reason"] = self.reason
        details = dict(self.details or {})
        if self.retry_after is not None:
            details.setdefault("retryAfterSeconds", self.retry_after)
        if details:
            status["details"] = details
        status["code"] = self.code
        return status

    def body(self) -> bytes:
        """Return the Status as JSON."""
        return msgspec.json.encode(self.to_dict())

    @classmethod
    def from_status(cls, status: Mapping[str, Any], *, code: int | None = None) -> StatusError:
        """Turn a decoded Status (an answer's body, or the object of a watch's ERROR event) into an error."""
        details = status.get("details")
        details = dict(details) if isinstance(details, Mapping) else None
        retry = details.get("retryAfterSeconds") if details else None
        number = status.get("code")
        return StatusError(
            code or (number if isinstance(number, int) and number >= 400 else 500),
            str(status.get("reason") or ""),
            str(status.get("message") or ""),
            details=details,
            retry_after=retry if isinstance(retry, int) else None,
        )

    @classmethod
    def from_response(
        cls, code: int, body: bytes, *, what: str, retry_after: str | None = None
    ) -> StatusError:
        """Turn an answer of `code` >= 400 into an error; `what` names the request for people.

        A body that is no Status is dropped; with a code >= 500 it did not come from an apiserver that works,
        so the cluster counts as unreachable.
        """
        status = decode_status(body)
        if status is not None:
            error = cls.from_status(status, code=code)
            if error.retry_after is None and retry_after and retry_after.isdigit():
                error.retry_after = int(retry_after)
            return error
        hint = int(retry_after) if retry_after and retry_after.isdigit() else None
        if code == 404:
            return StatusError(404, "NotFound", "the server could not find the requested resource")
        if code == 429:
            return too_many_requests(f"{what}: too many requests", retry_after=hint or 1)
        if code < 500:
            return StatusError(code, None, f"{what}: refused with HTTP {code}")
        return MemberUnreachable(f"{what}: HTTP {code} without a Status", retry_after=hint or 1)


class MemberUnreachable(StatusError):
    """The cluster did not answer as a Kubernetes apiserver: refused, timed out, TLS failed, or garbage.

    `unsent`: there was no connection, so it has not seen the request.
    """

    def __init__(self, message: str, *, retry_after: int = 1, unsent: bool = False) -> None:
        super().__init__(503, "ServiceUnavailable", message, retry_after=retry_after)
        self.unsent = unsent

    @property
    def passing(self) -> bool:
        """May the same request be sent again by itself, and is that likely to help?"""
        return self.unsent


class MemberAway(MemberUnreachable):
    """The cluster is known not to answer: it was not asked."""

    def __init__(self, message: str, *, retry_after: int = 10) -> None:
        super().__init__(message, retry_after=retry_after, unsent=True)

    @property
    def passing(self) -> bool:
        return False


class CredentialsRefused(StatusError):
    """A cluster's 401: it does not take the credentials that we have for it.

    Whoever asked us has others, and would take a 401 for their own (log in anew, throw a token away): see `outside`.
    """

    def __init__(self, label: str, said: StatusError) -> None:
        super().__init__(401, said.reason, said.message, details=said.details)
        self.label = label

    def outside(self) -> MemberUnreachable:
        """What they are told."""
        return MemberUnreachable(f"{self.label} refuses the credentials that Reclock has for it")


def decode_status(body: bytes) -> dict[str, Any] | None:
    """Return the Status in `body` (JSON or Kubernetes protobuf), or None where there is none."""
    if body.startswith(b"k8s\x00"):
        from services.common.kube.status_pb import decode

        return decode(body)
    try:
        status = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return status if isinstance(status, dict) and status.get("kind") == "Status" else None


def not_found(resource: str, name: str, group: str = "") -> StatusError:
    """`pods "web" not found`."""
    label = f"{resource}.{group}" if group else resource
    details: dict[str, Any] = {"name": name, "kind": resource}
    if group:
        details["group"] = group
    return StatusError(404, "NotFound", f'{label} "{name}" not found', details=details)


def already_exists(resource: str, name: str, group: str = "") -> StatusError:
    """`pods "web" already exists`."""
    label = f"{resource}.{group}" if group else resource
    details: dict[str, Any] = {"name": name, "kind": resource}
    if group:
        details["group"] = group
    return StatusError(409, "AlreadyExists", f'{label} "{name}" already exists', details=details)


def conflict(resource: str, name: str, message: str, group: str = "") -> StatusError:
    """`Operation cannot be fulfilled on pods "web": <message>`."""
    label = f"{resource}.{group}" if group else resource
    details: dict[str, Any] = {"name": name, "kind": resource}
    if group:
        details["group"] = group
    text = f'Operation cannot be fulfilled on {label} "{name}": {message}'
    return StatusError(409, "Conflict", text, details=details)


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def invalid(message: str, *, details: dict[str, Any] | None = None) -> StatusError:
    """422; `details` may name `causes` (field, reason, message)."""
    return StatusError(422, "Invalid", message, details=details)


def forbidden(message: str, *, details: dict[str, Any] | None = None) -> StatusError:
    """403."""
    return StatusError(403, "Forbidden", message, details=details)


def unauthorized(message: str = "Unauthorized") -> StatusError:
    """401."""
    return StatusError(401, "Unauthorized", message)


def expired(message: str) -> StatusError:
    """410: the version is older than what is kept."""
    return StatusError(410, "Expired", message)


def too_large_version(asked: int, current: int, retry_after: int = 1) -> StatusError:
    """504 with cause ResourceVersionTooLarge: a version of the future."""
    text = f"Too large resource version: {asked}, current: {current}"
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    return StatusError(504, "Timeout", text, details=details, retry_after=retry_after)


def timeout(message: str, retry_after: int | None = None) -> StatusError:
    """504."""
    return StatusError(504, "Timeout", message, retry_after=retry_after)


def unavailable(message: str, retry_after: int = 1) -> StatusError:
    """503."""
    return StatusError(503, "ServiceUnavailable", message, retry_after=retry_after)


def unsupported_media_type(message: str) -> StatusError:
    """415."""
    return StatusError(415, "UnsupportedMediaType", message)


def not_acceptable(message: str) -> StatusError:
    """406."""
    return StatusError(406, "NotAcceptable", message)


def method_not_allowed(message: str) -> StatusError:
    """405."""
    return StatusError(405, "MethodNotAllowed", message)


def too_many_requests(message: str, retry_after: int = 1) -> StatusError:
    """429."""
    return StatusError(429, "TooManyRequests", message, retry_after=retry_after)


def request_too_large(message: str) -> StatusError:
    """413."""
    return StatusError(413, "RequestEntityTooLarge", message)


def internal(message: str) -> StatusError:
    """500."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}")


def from_client_error(error: BaseException, what: str) -> StatusError:
    """Map what aiohttp, ssl and the socket raise; the cause is for `raise … from error`."""
    if isinstance(error, StatusError):
        return error
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return MemberUnreachable(f"{what}: its certificate is not trusted: {certificate_reason(error)}", unsent=True)
    if isinstance(error, aiohttp.ClientConnectorSSLError | ssl.SSLError):
        return MemberUnreachable(f"{what}: TLS failed: {reason_of(error)}", unsent=isinstance(error, aiohttp.ClientConnectorError))
    if isinstance(error, asyncio.TimeoutError):
        return MemberUnreachable(f"{what}: no answer in time")
    if isinstance(error, aiohttp.ClientConnectorError | ConnectionRefusedError):
        return MemberUnreachable(f"{what}: cannot connect: {reason_of(error)}", unsent=True)
    if isinstance(error, aiohttp.ClientError | OSError | EOFError):
        return MemberUnreachable(f"{what}: the connection broke: {reason_of(error)}")
    return internal(f"{what}: {type(error).__name__}")


def certificate_reason(error: BaseException) -> str:
    """The verification's own words, without the library's prefix."""
    inner = getattr(error, "certificate_error", error)
    return cut(str(getattr(inner, "verify_message", "") or inner), 200)


def reason_of(error: BaseException) -> str:
    """A short reason that names no secret."""
    inner = getattr(error, "os_error", None) or error
    said = str(getattr(inner, "strerror", None) or inner) or type(inner).__name__
    number = getattr(inner, "errno", None)
    if isinstance(number, int) and said.startswith("Connect call failed"):  # the loop's words for all of them
        said = os.strerror(number)
    return cut(said, 200)


def from_rpc(error: grpc.RpcError, what: str) -> StatusError:
    """Map an error of a gRPC call to another service."""
    code = error.code() if isinstance(error, grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
    text = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
    number = GRPC_TO_HTTP.get(code, 500)
    reason = "AlreadyExists" if code is grpc.StatusCode.ALREADY_EXISTS else None
    retry = 1 if number in (429, 503) else None
    return StatusError(number, reason, f"{what}: {text or code.name}", retry_after=retry)


def rpc_code(error: StatusError) -> grpc.StatusCode:
    """The gRPC code that says the same as `error`."""
    if error.reason == "AlreadyExists":
        return grpc.StatusCode.ALREADY_EXISTS
    return HTTP_TO_GRPC.get(error.code, grpc.StatusCode.INTERNAL)
