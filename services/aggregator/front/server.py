"""The HTTP/1.1 server under the front: aiohttp's, with what an API server needs besides.

- a connection's verified certificate is looked at once, not per request;
- a request's head is bounded in length and must arrive in time (slow-loris), and answers be taken: see READ_TIMEOUT;
- a handler can take the connection over (`take_over`) and pipe bytes: upgrades of any protocol;
- what the parser refuses is answered with a Status.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from services.aggregator.config import Limits
from services.aggregator.front import errors
from services.aggregator.front.certificates import Authorities, Peer
from services.aggregator.front.connections import CLOSED, Slot
from services.aggregator.front.pipes import ClientPipe
from services.aggregator.types import Call

READ_TIMEOUT = 120.0
"""Seconds that an answer may wait for a client that takes nothing of it. What is kept for one is bounded, but kept; a
watch that is closed is resumed. Logs and tunnels wait as long as their reader likes."""
KEEPALIVE = 180.0
"""Seconds that an idle connection is kept: longer than client-go's 90, so that the client closes first."""
MAX_HEADER = 64 * 1024
MAX_BODY = 3 * 1024 * 1024

HEAD_TOO_LARGE = b"request line and headers are too long together"

Handler = Callable[["FrontRequest"], Awaitable[web.StreamResponse]]


class FrontRequest(web.Request):
    """A request that knows its call; headers that every answer carries are added when it starts."""

    call: Call | None = None

    @property
    def connection(self) -> FrontProtocol:
        """The connection that the request came on."""
        return cast(FrontProtocol, self.protocol)

    @property
    def started(self) -> bool:
        """Whether some of the answer has been sent."""
        return bool(self._payload_writer.output_size)

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        headers = response.headers
        headers.pop("Server", None)
        headers.setdefault("Audit-Id", self.audit_id)
        headers.setdefault("Cache-Control", "no-cache, private")
        if self.call is not None:
            for text in self.call.warnings:
                headers.add("Warning", warning(text))

    @property
    def audit_id(self) -> str:
        """The client's id of this request, or one made up now; the same for the whole request."""
        found = self._cache.get("audit_id")
        if found is None:
            found = self._cache["audit_id"] = self.headers.get("Audit-ID", "")[:64] or str(uuid.uuid4())
        return str(found)


def warning(text: str) -> str:
    """The value of a `Warning` header, as Kubernetes writes it."""
    clean = "".join(character for character in text if character >= " " and character != "\x7f")
    return '299 - "{}"'.format(clean.replace("\\", "\\\\").replace('"', '\\"'))


class FrontProtocol(RequestHandler):
    """One client connection."""

    __slots__ = ("_anchors", "_body", "_head_bytes", "_head_timer", "_limits", "_peer", "_pipe", "_read_timer", "authorities", "slot")

    def __init__(self, manager: FrontServer, slot: Slot, **options: Any) -> None:
        super().__init__(manager, **options)
        self.authorities = manager.authorities
        self.slot = slot
        self._limits = manager.limits
        self._head_bytes = 0
        self._body: StreamReader | None = None  # of the request that came last
        self._peer: Peer | bool | None = False  # False: not looked at yet
        self._anchors: frozenset[bytes] = frozenset()  # the authorities when it was looked at
        self._pipe: ClientPipe | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    def peer(self) -> Peer | None:
        """Who the client's certificate says it is."""
        if self._peer is False or self._anchors is not self.authorities.anchors:
            tls = self.transport.get_extra_info("ssl_object") if self.transport else None
            self._anchors = self.authorities.anchors
            self._peer = self.authorities.connected(tls) if tls is not None else None
        return cast("Peer | None", self._peer)

    def recheck(self) -> None:
        """Authorities have changed: end a connection whose certificate is trusted no more, streams and tunnels too."""
        before = self._peer
        if before and self._anchors is not self.authorities.anchors:
            self._peer = False
            if self.peer() != before:
                self.force_close()

    def take_over(self) -> ClientPipe:
        """Give the connection to the running handler: from now on bytes pass as they come."""
        assert self.transport is not None and self._pipe is None
        pipe = self._pipe = ClientPipe(self, self.transport)
        tail, self._message_tail = self._message_tail, b""
        self._upgraded = False
        if tail:
            pipe.feed(tail)
        elif self._buffer_paused or self._reading_paused:
            self._buffer_paused = self._reading_paused = False
            self.transport.resume_reading()
        return pipe

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.slot.end = cast(asyncio.Transport, transport).abort
        self._head_timer = self._loop.call_later(self._limits.header_seconds, self._head_late)

    def data_received(self, data: bytes) -> None:
        if self._pipe is not None:
            self._pipe.feed(data)
            return
        requests, body = self._request_count, self._body is not None and not self._body.is_eof()
        super().data_received(data)
        if self._request_count > requests:
            self._head_bytes = 0
            self._body = self._messages[-1][1]
        elif not body and not self._upgraded:
            self._count_head(len(data))
        waiting = self._waiter is not None and not self._waiter.done()
        if not waiting:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self._loop.call_later(self._limits.header_seconds, self._head_late)

    def _count_head(self, size: int) -> None:
        """Bound a head as a whole: the parser bounds each of its lines, and keeps them until the last has come."""
        self._head_bytes += size
        if self._head_bytes > self._limits.header_bytes and not self._force_close:
            CLOSED.labels("headers").inc()
            if self._current_request is None and self.transport is not None:
                self.transport.write(
                    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain\r\nConnection: close\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(HEAD_TOO_LARGE), HEAD_TOO_LARGE)
                )
            self.force_close()

    def _head_late(self) -> None:
        self._head_timer = None
        if self._pipe is None and self._waiter is not None and not self._waiter.done():
            CLOSED.labels("request").inc()
            self.force_close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._read_timer is None:
            self._read_timer = self._loop.call_later(READ_TIMEOUT, self._read_late)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_read_timer()

    def _end_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _read_late(self) -> None:
        self._read_timer = None
        call = getattr(self._current_request, "call", None)
        if self._pipe is not None or self.transport is None or (call is not None and call.info.subresource == "log"):
            return
        CLOSED.labels("reading").inc()
        self.transport.abort()  # closing would wait until what is left was read

    def eof_received(self) -> bool | None:  # type: ignore[override]
        # True keeps our direction open (TCP only; TLS has no half-close here).
        return self._pipe.feed_eof() if self._pipe is not None else None

    def connection_lost(self, exc: BaseException | None) -> None:
        self.slot.release()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._end_read_timer()
        if self._pipe is not None:
            self._pipe.lost()
            # The tunnel ends by itself, in order: without this the handler would be cancelled.
            self._task_handler = None
        super().connection_lost(exc)

    async def finish_response(self, *args: Any, **kwargs: Any) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(*args, **kwargs)
        finally:
            self.slot.rests()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:  # fmt: skip
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: an error can only be shown by closing")
        error = errors.from_exception(exc, "request") if status >= 500 and exc else errors.from_protocol(exc, status)
        answer = errors.response(error)
        answer.force_close()
        return answer


class FrontServer(web.Server):
    """Makes a FrontProtocol per connection and a FrontRequest per request."""

    def __init__(self, handler: Handler, authorities: Authorities, limits: Limits) -> None:
        super().__init__(
            cast(Any, handler),
            request_factory=self._request,
            # A client that leaves ends its watch at once, not at the next event. Writes are shielded (dispatch).
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE,
            access_log=None,
            max_line_size=MAX_HEADER,
            max_field_size=MAX_HEADER,
            max_headers=256,
            auto_decompress=False,
            lingering_time=2.0,
            read_bufsize=256 * 1024,
        )
        self.authorities = authorities
        self.limits = limits

    def recheck(self) -> None:
        """Authorities have changed: look at every connection's certificate again."""
        for connection in list(self.connections):
            cast(FrontProtocol, connection).recheck()

    def protocol(self, slot: Slot) -> FrontProtocol:
        """The protocol of a new connection."""
        return FrontProtocol(self, slot, loop=self._loop, **self._kwargs)

    def _request(
        self, message: RawRequestMessage, payload: StreamReader, protocol: RequestHandler,
        writer: AbstractStreamWriter, task: asyncio.Task[None],
    ) -> web.BaseRequest:  # fmt: skip
        cast(FrontProtocol, protocol).slot.works()
        return FrontRequest(message, payload, protocol, writer, task, self._loop, client_max_size=MAX_BODY)
