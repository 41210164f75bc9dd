"""The fault proxy: what each fault looks like from both ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from deploy.local.ports import Ports
from deploy.local.proxy import Link


class Echo:
    """A server that answers each line, and the link to it."""

    def __init__(self) -> None:
        self.ports = Ports()
        self.heard: list[bytes] = []

    async def __aenter__(self) -> Echo:
        target = self.ports.take()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", target)
        self.link = Link("client->server", self.ports.take(), target)
        await self.link.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.stop()
        self.server.close()
        self.ports.release()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.heard.append(line)
                writer.write(line)
                await writer.drain()
            writer.write(b"bye\n")
            writer.close()
        except ConnectionError:
            writer.close()  # what a reset looks like here

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.link.port))


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, text: bytes) -> bytes:
        self.writer.write(text)
        return await self.reader.readline()

    async def silent(self) -> bool:
        try:
            await asyncio.wait_for(self.reader.readline(), 0.2)
        except TimeoutError:
            return True
        return False


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    async with Echo() as one:
        yield one


async def test_bytes_pass_both_ways_and_one_end_may_close_first(echo: Echo) -> None:
    client = await echo.connect()
    assert await client.ask(b"a\n") == b"a\n"
    client.writer.write_eof()
    assert await client.reader.read() == b"bye\n"


async def test_cut_breaks_what_is_open_and_refuses_what_is_new(echo: Echo) -> None:
    client = await echo.connect()
    await client.ask(b"a\n")
    echo.link.set("cut")
    with pytest.raises(ConnectionResetError):
        await client.reader.readline()
    other = await echo.connect()
    with pytest.raises(ConnectionResetError):
        await other.reader.readline()
    echo.link.set("heal")
    assert await (await echo.connect()).ask(b"b\n") == b"b\n"


async def test_reset_breaks_once(echo: Echo) -> None:
    client = await echo.connect()
    await client.ask(b"a\n")
    echo.link.set("reset")
    with pytest.raises(ConnectionResetError):
        await client.reader.readline()
    assert await (await echo.connect()).ask(b"b\n") == b"b\n"


async def test_hang_keeps_connections_and_passes_nothing_until_it_heals(echo: Echo) -> None:
    client = await echo.connect()
    await client.ask(b"a\n")
    echo.link.set("hang")
    client.writer.write(b"b\n")
    new = await echo.connect()
    new.writer.write(b"c\n")
    assert await client.silent() and await new.silent()
    assert echo.heard == [b"a\n"]
    echo.link.set("heal")
    assert await client.reader.readline() == b"b\n"
    assert await new.reader.readline() == b"c\n"


async def test_half_open_lets_requests_through_and_no_answer(echo: Echo) -> None:
    client = await echo.connect()
    await client.ask(b"a\n")
    echo.link.set("half-open")
    client.writer.write(b"b\n")
    assert await client.silent()
    assert echo.heard == [b"a\n", b"b\n"]
    echo.link.set("heal")
    assert await client.reader.readline() == b"b\n"


async def test_slow_is_late_and_narrow(echo: Echo) -> None:
    client = await echo.connect()
    echo.link.set("slow", latency=0.1)
    begin = asyncio.get_running_loop().time()
    await client.ask(b"a\n")
    assert asyncio.get_running_loop().time() - begin >= 0.2
    echo.link.set("slow", latency=0, bandwidth=10_000)
    begin = asyncio.get_running_loop().time()
    await client.ask(b"x" * 2000 + b"\n")
    assert asyncio.get_running_loop().time() - begin >= 0.4


async def test_a_server_that_is_down_is_a_broken_connection(echo: Echo) -> None:
    echo.server.close()
    client = await echo.connect()
    with pytest.raises(ConnectionResetError):
        await client.reader.readline()


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed: heal, cut"):
        Link("a", 1, 2).set("melt")
