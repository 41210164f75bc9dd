"""What one client may take: requests and watches in flight, and the size and form of bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from prometheus_client import Counter, Gauge

from services.aggregator.config import Limits
from services.aggregator.front.connections import CLOSED
from services.aggregator.front.server import MAX_BODY, FrontRequest
from services.aggregator.types import Call
from services.common.errors import (
    bad_request,
    request_too_large,
    timeout,
    too_many_requests,
    unsupported_media_type,
)

BODY_TIMEOUT = 60.0

IN_FLIGHT = Gauge("reclock_aggregator_requests_in_flight", "Requests being answered", ["kind"])
REFUSED = Counter("reclock_aggregator_requests_refused_total", "Requests refused with 429", ["kind"])

PATCH_TYPES = (
    "application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)  # fmt: skip
OBJECT_TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")


class InFlight:
    """Counts requests per user and kind ("request" or "stream": watches, logs and tunnels last)."""

    def __init__(self, limits: Limits) -> None:
        self._limits = {"request": limits.requests, "stream": limits.streams}
        self._counts: dict[tuple[str, str], int] = {}

    @contextmanager
    def enter(self, user: str, kind: str, call: Call) -> Iterator[None]:
        """Count a request while the block runs, and its `rest` after that; 429 above the limit."""
        key = (user, kind)
        count = self._counts.get(key, 0)
        if count >= self._limits[kind]:
            REFUSED.labels(kind).inc()
            raise too_many_requests(
                f"too many {kind}s of {user!r} at once ({count}), please try again later", retry_after=1
            )
        self._counts[key] = count + 1
        IN_FLIGHT.labels(kind).inc()
        try:
            yield
        finally:
            if call.rest is not None and not call.rest.done():
                # Or who hangs up at once could have any number of writes under way.
                call.rest.add_done_callback(lambda _: self._leave(key))
            else:
                self._leave(key)

    def _leave(self, key: tuple[str, str]) -> None:
        IN_FLIGHT.labels(key[1]).dec()
        if self._counts[key] == 1:
            del self._counts[key]
        else:
            self._counts[key] -= 1


async def read_body(request: FrontRequest) -> bytes:
    """Read the body (kept by the request: reading again is free); 413 above 3 MiB, 504 when it does not come."""
    length = request.content_length
    if length is not None and length > MAX_BODY:
        raise request_too_large(f"Request entity too large: limit is {MAX_BODY}")
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            return await request.read()
    except TimeoutError:
        CLOSED.labels("body").inc()
        request.connection.close()  # after the answer: the rest of the body would be taken for the next request
        raise timeout("the request's body did not arrive in time") from None


async def check_body(request: FrontRequest, verb: str) -> None:
    """Refuse what no API server takes: an unknown media type (415), JSON that is none (400)."""
    body = await read_body(request)
    media = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if verb == "patch":
        if media not in PATCH_TYPES:
            raise _unknown_media(PATCH_TYPES)
        if media != "application/apply-patch+yaml":
            _check_json(body, "error decoding patch")
    elif verb in ("create", "update"):
        if media and media not in OBJECT_TYPES:
            raise _unknown_media(OBJECT_TYPES)
        if not media or media == "application/json":
            _check_json(body, "the object provided is unrecognized")
    elif body and media == "application/json":
        _check_json(body, "couldn't get version/kind")


def _unknown_media(accepted: tuple[str, ...]) -> Exception:
    return unsupported_media_type(
        "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    )


def _check_json(body: bytes, what: str) -> None:
    try:
        # Raw checks the syntax and builds nothing.
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"{what}: json parse error: {error}") from None
