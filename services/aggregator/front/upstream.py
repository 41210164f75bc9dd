"""Reads the answer to an upgrade from a bare connection: the head, and the body where it is no 101."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from multidict import CIMultiDict

MAX_BODY = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers; `raw` are the bytes as they came, with the empty line."""

    status: int
    reason: str
    headers: CIMultiDict[str]
    raw: bytes


async def read_head(reader: asyncio.StreamReader) -> Head:
    """Read one; passes interim answers (100) over. Raises EOFError or ValueError for what is no HTTP."""
    while True:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise ValueError("the head of the answer is too long") from error
        head = _parse(raw)
        if head.status >= 200 or head.status == 101:
            return head


def _parse(raw: bytes) -> Head:
    lines = raw.decode("utf-8", "surrogateescape").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    code, _, reason = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not code.isdigit():
        raise ValueError("the answer is no HTTP/1.1")
    headers: CIMultiDict[str] = CIMultiDict()
    for line in lines[1:]:
        if line:
            key, _, value = line.partition(":")
            headers.add(key.strip(), value.strip())
    return Head(int(code), reason, headers, raw)


async def read_body(head: Head, reader: asyncio.StreamReader) -> bytes:
    """Read the body, MAX_BODY bytes of it at most."""
    if head.status in (204, 304):
        return b""
    if "chunked" in head.headers.get("Transfer-Encoding", "").lower():
        return await _chunked(reader)
    length = head.headers.get("Content-Length", "")
    if length.isdigit():
        return await reader.readexactly(min(int(length), MAX_BODY))
    body = b""
    while len(body) < MAX_BODY and (data := await reader.read(MAX_BODY - len(body))):
        body += data
    return body


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while len(body) < MAX_BODY:
        size = int((await reader.readline()).split(b";")[0].strip(), 16)
        if size == 0:
            break
        body += await reader.readexactly(min(size, MAX_BODY))
        await reader.readline()
    return body[:MAX_BODY]
