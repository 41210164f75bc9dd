"""What can go wrong, as exceptions; foreign errors (HTTP, aiohttp, gRPC) are mapped in this file only."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

_TEXT = 300


class ReclockError(Exception):
    """Base of the SDK's errors."""


class ApiError(ReclockError):
    """An answer of a Kubernetes API that is no success (`metav1.Status`).

    `code` is the HTTP status, `reason` the API's word for it ("NotFound"), `retry_after` the seconds that the server
    asked to wait (None: it did not), `details` the Status' own.
    """

    code = 0

    def __init__(
        self,
        message: str,
        *,
        code: int = 0,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.reason = reason
        self.details = dict(details or {})
        self.retry_after = retry_after


class Unauthorized(ApiError):
    """401: the front does not know who we are."""

    code = 401


class Forbidden(ApiError):
    """403: we may not."""

    code = 403


class NotFound(ApiError):
    """404: no such object, type, or cluster."""

    code = 404


class Conflict(ApiError):
    """409: the object has changed since it was read, or fields belong to another manager."""

    code = 409


class AlreadyExists(Conflict):
    """409 with reason AlreadyExists."""


class Expired(ApiError):
    """410: the version is too old to go on from; list again."""

    code = 410


class Invalid(ApiError):
    """422: the object is not valid; `details["causes"]` names the fields."""

    code = 422


class Unreachable(ApiError):
    """The front did not answer, or the cluster behind it did not (502, 503, 504)."""

    code = 503


class LeaseLost(ReclockError):
    """The request's lease was not renewed or has ended: another worker may have it. Raised by the client methods of
    a request whose (plain) handler should have stopped."""


class RegistrationRefused(ReclockError):
    """The controller service does not take the controller; says which field or right is wrong."""


_BY_CODE: dict[int, type[ApiError]] = {
    kind.code: kind for kind in (Unauthorized, Forbidden, NotFound, Conflict, Expired, Invalid, Unreachable)
}
_BY_CODE |= {502: Unreachable, 504: Unreachable}


def from_answer(code: int, body: bytes, what: str, retry_after: str | None = None) -> ApiError:
    """The error of an HTTP answer >= 400; a body that is no Status is left out (it may be anything)."""
    try:
        status = json.loads(body)
    except ValueError:
        status = {}
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {}
    return from_status({"code": code, **status}, what, retry_after)


def from_status(status: Mapping[str, Any], what: str, retry_after: str | None = None) -> ApiError:
    """The error that a `metav1.Status` says (an answer, or an ERROR event of a watch)."""
    code, reason = int(status.get("code") or 500), str(status.get("reason") or "")
    kind = AlreadyExists if reason == "AlreadyExists" else _BY_CODE.get(code, ApiError)
    message = str(status.get("message") or f"HTTP {code}")[:_TEXT]
    details = status.get("details") if isinstance(status.get("details"), dict) else {}
    hint = retry_after or (details or {}).get("retryAfterSeconds")
    wait = float(hint) if hint is not None and str(hint).replace(".", "", 1).isdigit() else None
    return kind(f"{what}: {message}", code=code, reason=reason, details=details, retry_after=wait)


def from_transport(error: BaseException, what: str) -> Unreachable:
    """The error of a request that got no answer."""
    if isinstance(error, TimeoutError):
        why = "no answer in time"
    elif isinstance(error, aiohttp.ClientError | OSError):
        why = reason_of(error)
    else:
        why = type(error).__name__
    return Unreachable(f"{what}: {why}", reason="ServiceUnavailable")


def reason_of(error: aiohttp.ClientError | OSError) -> str:
    """Why there was no connection, or why it broke, in the system's words where it has some."""
    inner = getattr(error, "os_error", None) or error
    number = getattr(inner, "errno", None)
    # The number of an error of TLS is OpenSSL's.
    if isinstance(number, int) and not isinstance(inner, ssl.SSLError):
        return os.strerror(number)
    return str(inner)[:_TEXT] or type(inner).__name__
