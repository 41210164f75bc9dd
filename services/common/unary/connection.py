"""One HTTP/2 connection (the library `h2`) with unary gRPC calls on it. Owned by one loop; nothing here waits.

Each call is a stream of its own: headers and one message out, headers, messages and trailers back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import cast

from h2 import events
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection, H2ConnectionStateMachine
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, TooManyStreamsError
from h2.settings import SettingCodes, Settings

SILENCE = 4.0
"""Seconds in which calls waited and nothing at all came, after which the connection counts as dead."""
ANSWER_AFTER = 0.1
"""Seconds after which pings are answered. Go's gRPC pings after whatever it receives, while no answer is
outstanding, to measure how much it may take at once: answered at once, each call would cost both sides one more packet."""
WINDOW = (1 << 31) - 1
"""Bytes that the server may send ahead of us: an answer is kept as it comes anyway, so windows would only hold it up."""
Header = tuple[bytes, bytes]

# Our own headers are as they must be, and of the server's two names are looked at.
_CONFIG = H2Configuration(
    validate_outbound_headers=False, normalize_outbound_headers=False,
    validate_inbound_headers=False, normalize_inbound_headers=False,
)  # fmt: skip


class ConnectionBroken(Exception):
    """No answer will come. `unprocessed`: the server has not looked at the call, and will not."""

    def __init__(self, message: str, *, unprocessed: bool = False) -> None:
        super().__init__(message)
        self.unprocessed = unprocessed


class StreamReset(Exception):
    """The server broke the call off; `code` is HTTP/2's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the server broke the call off (HTTP/2 error {code})")
        self.code = code


class _States(H2ConnectionStateMachine):
    """A server that goes away answers what it has taken; h2 would take nothing any more (its issue 1181)."""

    _transitions = {  # noqa: RUF012 - as in h2
        **H2ConnectionStateMachine._transitions,
        (ConnectionState.CLIENT_OPEN, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.CLIENT_OPEN),
    }


class Exchange:
    """One call under way. `done` gives its headers (trailers' among them) and its messages' bytes."""

    __slots__ = ("body", "done", "headers", "id", "received", "unsent")

    def __init__(
        self, number: int, done: asyncio.Future[tuple[dict[bytes, bytes], bytes]], message: bytes, received: int
    ) -> None:
        self.id, self.done, self.received = number, done, received
        self.headers: dict[bytes, bytes] = {}
        self.body: list[bytes] = []
        self.unsent = memoryview(message)

    def fail(self, error: Exception) -> None:
        """There is no answer."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # who called may be gone


class Connection(asyncio.Protocol):
    """Usable from `connection_made` on; `lost` is called once, when it is usable no more."""

    def __init__(self, lost: Callable[[Connection], None]) -> None:
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._h2 = H2Connection(_CONFIG)
        self._h2.state_machine = _States()
        self._calls: dict[int, Exchange] = {}
        self._answers = b""  # h2's own, until they are sent
        self._received = 0  # times that something came
        self._mute = (-1, 0.0)  # so much had come when calls began to wait in vain, and since when they do
        self.closed = False

    # For callers.

    def start(self, headers: Iterable[Header], message: bytes) -> Exchange:
        """Send a call. Its future ends with ConnectionBroken or StreamReset where no answer comes."""
        assert not self.closed
        number = self._h2.get_next_available_stream_id()
        call = Exchange(number, self._loop.create_future(), message, self._received)
        try:
            self._h2.send_headers(number, headers)
        except TooManyStreamsError as error:
            call.fail(ConnectionBroken(str(error), unprocessed=True))
            return call
        self._calls[number] = call
        self._send(call)
        if number + 2 > self._h2.HIGHEST_ALLOWED_STREAM_ID:
            self._retire()
        return call

    def late(self, call: Exchange, since: float) -> None:
        """Its time is over: TimeoutError. `since`: when it began."""
        call.fail(TimeoutError())
        self.cancel(call)
        if call.received == self._received:
            if self._mute[0] != call.received:
                self._mute = call.received, since
            if self._loop.time() - self._mute[1] >= SILENCE:
                self.abort("no sign of life")  # half open, perhaps: others must not wait for it too

    def cancel(self, call: Exchange) -> None:
        """Its answer is not waited for any more."""
        if self._calls.pop(call.id, None) is not None:
            self._h2.reset_stream(call.id, ErrorCodes.CANCEL)
            self._flush()
        self._close_if_idle()

    def abort(self, reason: str) -> None:
        """End it at once; calls under way fail."""
        if self._transport is not None:
            self._transport.abort()
        self._end(ConnectionBroken(reason))

    def _retire(self) -> None:
        """No new calls; those under way end as they end."""
        if not self.closed:
            self.closed = True
            self._lost(self)
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self.closed and not self._calls and self._transport is not None:
            self._transport.close()

    def _end(self, error: ConnectionBroken) -> None:
        calls, self._calls = self._calls, {}
        self._retire()
        for call in calls.values():
            call.fail(error)

    # For the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        wanted = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: WINDOW}
        self._h2.local_settings = Settings(client=True, initial_values=wanted)
        self._h2.initiate_connection()
        self._widen()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(ConnectionBroken(f"the connection broke: {exc}" if exc else "the connection was closed"))

    def data_received(self, data: bytes) -> None:
        self._received += 1
        try:
            for event in self._h2.receive_data(data):
                self._take(event)
        except ProtocolError as error:
            self.abort(f"what came is no HTTP/2: {error}")
        if answers := self._h2.data_to_send():
            if not self._answers:
                self._loop.call_later(ANSWER_AFTER, self._answer)
            self._answers += answers

    def _answer(self) -> None:
        answers, self._answers = self._answers, b""
        self._write(answers)

    def _flush(self) -> None:
        self._write(self._h2.data_to_send())

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived):
            if (call := self._calls.get(event.stream_id)) is not None:
                call.body.append(event.data)
            if self._h2.inbound_flow_control_window < WINDOW // 2:
                self._widen()
        elif isinstance(event, events.ResponseReceived | events.TrailersReceived):
            if (call := self._calls.get(event.stream_id)) is not None:
                call.headers.update(event.headers)
        elif isinstance(event, events.StreamEnded):
            self._finish(event.stream_id)
        elif isinstance(event, events.WindowUpdated | events.RemoteSettingsChanged):
            if isinstance(event, events.RemoteSettingsChanged):
                self._flush()  # servers expect to be answered before anything goes by their new settings
            for call in self._calls.values():
                if call.unsent:
                    self._send(call)
        elif isinstance(event, events.StreamReset):
            if (call := self._calls.pop(event.stream_id, None)) is not None:
                call.fail(StreamReset(event.error_code))
            self._close_if_idle()
        elif isinstance(event, events.ConnectionTerminated):
            self._go_away(event.last_stream_id or 0)

    def _finish(self, number: int) -> None:
        if (call := self._calls.pop(number, None)) is None:
            return
        if call.unsent:
            self._h2.reset_stream(number, ErrorCodes.CANCEL)
        if not call.done.done():
            call.done.set_result((call.headers, b"".join(call.body)))
        self._close_if_idle()

    def _go_away(self, last: int) -> None:
        for number in [number for number in self._calls if number > last]:
            self._calls.pop(number).fail(ConnectionBroken("the server goes away", unprocessed=True))
        self._retire()

    def _widen(self) -> None:
        self._h2.increment_flow_control_window(WINDOW - self._h2.inbound_flow_control_window)

    def _send(self, call: Exchange) -> None:
        """As much as fits now; the message of a call is never empty, so its last frame ends the stream."""
        try:
            while call.unsent:
                size = min(self._h2.local_flow_control_window(call.id), self._h2.max_outbound_frame_size)
                if size <= 0:
                    break
                self._h2.send_data(call.id, call.unsent[:size], end_stream=size >= len(call.unsent))
                call.unsent = call.unsent[size:]
        except ProtocolError:
            pass  # it is broken off: the event that says so came with this one
        self._flush()
