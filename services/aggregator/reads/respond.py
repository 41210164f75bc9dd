"""Answers on their way out: whole when small, chunked when not, gzip where it pays, indented for people."""

from __future__ import annotations

import asyncio
import zlib

import msgspec
from aiohttp import web

from services.aggregator.reads.negotiate import Negotiated
from services.aggregator.types import Call

GZIP_FROM = 128 * 1024  # bytes from which kube-apiserver compresses
HOLD = 1024 * 1024  # bytes of an answer that are kept before its head is sent, so that it can start again
WRITE = 256 * 1024  # bytes written at a time
GZIP_LEVEL = 1


def accepts_gzip(header: str) -> bool:
    """Does `Accept-Encoding` name gzip (not with q=0)?"""
    for part in header.split(","):
        name, _, rest = part.partition(";")
        if name.strip().lower() == "gzip":
            return rest.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def pretty(body: bytes) -> bytes:
    """JSON indented as Kubernetes does it."""
    return msgspec.json.format(body, indent=2)


class Outgoing:
    """One answer. Nothing is sent before `HOLD` bytes are there or it is finished: until then it may be dropped."""

    def __init__(self, call: Call, form: Negotiated) -> None:
        self._call, self._form = call, form
        self.member_warnings: list[str] = []  # `Warning` headers of members, passed on as they are
        self._parts: list[bytes] = []
        self._size = 0
        self._response: web.StreamResponse | None = None
        self._gzip = accepts_gzip(call.request.headers.get("Accept-Encoding", ""))
        self._zipping: asyncio.Future[bytes] | None = None
        self._zip = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31) if self._gzip else None

    @property
    def started(self) -> bool:
        """Is it too late to answer something else?"""
        return self._response is not None

    async def add(self, parts: list[bytes]) -> None:
        """Append; waits when the client is slow."""
        self._parts.extend(parts)
        self._size += sum(map(len, parts))
        if self._response is None:
            if self._size >= HOLD:
                await self._start()
        elif self._size >= WRITE:
            await self._flush()

    async def _start(self) -> None:
        response = self._new(web.StreamResponse(status=200))
        response.enable_chunked_encoding()
        if self._gzip:
            response.headers["Content-Encoding"] = "gzip"
        await response.prepare(self._call.request)
        self._response = response
        await self._flush()

    def _new(self, response: web.StreamResponse) -> web.StreamResponse:
        response.content_type = self._form.content_type
        response.headers["Cache-Control"] = "no-cache, private"
        if self._gzip:
            response.headers["Vary"] = "Accept-Encoding"
        for raw in dict.fromkeys(self.member_warnings):
            response.headers.add("Warning", raw)
        return response

    async def _flush(self, last: bool = False) -> None:
        assert self._response is not None
        data = b"".join(self._parts)
        self._parts, self._size = [], 0
        if self._zip is None:
            await self._response.write(data)
            return
        # Off the loop: zlib gives the interpreter away while it works, on one piece while the next is made.
        before, self._zipping = self._zipping, asyncio.ensure_future(self._compressed(self._zipping, data, last))
        for pending in (before, self._zipping if last else None):
            if pending is not None and (packed := await pending):
                await self._response.write(packed)

    async def _compressed(self, before: asyncio.Future[bytes] | None, data: bytes, last: bool) -> bytes:
        if before is not None:
            await asyncio.wait((before,))
        return await asyncio.to_thread(self._compress, data, last)

    def _compress(self, data: bytes, last: bool) -> bytes:
        assert self._zip is not None
        return self._zip.compress(data) + (self._zip.flush() if last else b"")

    async def finish(self) -> web.StreamResponse:
        """Send what is left."""
        if self._response is not None:
            await self._flush(last=True)
            await self._response.write_eof()
            return self._response
        gzip = self._gzip and self._size > GZIP_FROM
        if self._size > WRITE and not gzip:
            return await self._in_pieces()
        body = b"".join(self._parts)
        if gzip:
            body = await asyncio.to_thread(self._compress, body, True)
        response = web.Response(status=200, body=body)
        self._new(response)
        if gzip:
            response.headers["Content-Encoding"] = "gzip"
        return response

    async def _in_pieces(self) -> web.StreamResponse:
        """A large body whose length is known: the client reads while we encrypt, in half the CPU that one write of it takes."""
        response = self._new(web.StreamResponse(status=200))
        response.content_length = self._size
        await response.prepare(self._call.request)
        self._response = response
        parts, self._parts, self._size = self._parts, [], 0
        for part in parts:
            self._parts.append(part)
            self._size += len(part)
            if self._size >= WRITE:
                await self._flush()
        await self._flush()
        await response.write_eof()
        return response

    def abort(self) -> None:
        """Break the connection: the client must not take half an answer for a whole one."""
        transport = self._call.request.transport
        if transport is not None:
            transport.abort()


async def whole(call: Call, form: Negotiated, body: bytes) -> web.StreamResponse:
    """One body as an answer."""
    out = Outgoing(call, form)
    await out.add([pretty(body) if form.pretty else body])
    return await out.finish()
