"""The etcd client on a real etcd."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.binaries import Binaries, BinariesMissing
from services.common.config import ConfigError
from services.common.etcd import (
    DELETE,
    PUT,
    Etcd,
    EtcdCompacted,
    EtcdUnavailable,
    LeaseGone,
    compare,
    op_delete,
    op_put,
    op_range,
    prefix_end,
)  # fmt: skip


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Server:
    """A real etcd that can be killed and started again."""

    def __init__(self, program: str, folder: Path) -> None:
        self.url, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._command = [
            program, "--data-dir", str(folder), "--log-level", "error", "--listen-client-urls", self.url,
            "--advertise-client-urls", self.url, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        null = asyncio.subprocess.DEVNULL
        self._child = await asyncio.create_subprocess_exec(*self._command, stdout=null, stderr=null)
        client = Etcd.connect([self.url])
        for _ in range(200):
            try:
                await client.status()
                break
            except EtcdUnavailable:
                await asyncio.sleep(0.05)
        else:
            raise AssertionError("etcd did not start")
        await client.close()

    async def kill(self) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            await self._child.wait()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    try:
        program = Binaries.find().etcd
    except BinariesMissing as missing:
        pytest.skip(f"no etcd: {missing}")
    made = Server(str(program), tmp_path / "etcd")
    await made.start()
    yield made
    await made.kill()


@pytest.fixture
async def etcd(server: Server) -> AsyncIterator[Etcd]:
    # The first endpoint answers nobody: every test also shows that the second is found.
    client = Etcd.connect(["http://127.0.0.1:1", server.url])
    await client.status()
    yield client
    await client.close()


async def collect(watch: Any, count: int) -> list[tuple[int, bytes]]:
    events: list[tuple[int, bytes]] = []
    async with asyncio.timeout(10):
        while len(events) < count:
            batch = await anext(watch)
            events.extend((event.type, event.kv.key) for event in batch.events)
    return events


async def test_keys_ranges_and_pages(etcd: Etcd) -> None:
    for number in range(10):
        await etcd.put(b"/a/%d" % number, b"x")
    await etcd.put(b"/b", b"y")
    assert (await etcd.get(b"/a/3")).value == b"x"  # type: ignore[union-attr]
    assert await etcd.get(b"/none") is None
    result = await etcd.range(b"/a/", prefix=True, limit=3)
    assert (len(result.kvs), result.more, result.count) == (3, True, 10)
    pages = [page async for page in etcd.pages(b"/a/", prefix_end(b"/a/"), page=4)]
    assert [len(page.kvs) for page in pages] == [4, 4, 2]
    assert len({page.revision for page in pages}) == 1
    assert await etcd.delete(b"/a/", prefix=True) == 10
    assert (await etcd.range(b"", prefix=True)).count == 1


async def test_transactions_compare_and_write_at_one_revision(etcd: Etcd) -> None:
    revision = await etcd.put(b"a", b"1")
    done = await etcd.txn(
        [compare(b"a", "mod", "=", revision), compare(b"b", "version", "=", 0)],
        [op_put(b"a", b"2"), op_put(b"b", b"3"), op_delete(b"none")],
        [op_range(b"a")],
    )
    assert done.succeeded
    for key in (b"a", b"b"):
        assert (await etcd.get(key)).mod_revision == done.revision  # type: ignore[union-attr]
    again = await etcd.txn([compare(b"a", "mod", "=", revision)], [op_put(b"a", b"9")], [op_range(b"a")])
    assert not again.succeeded
    assert again.responses[0].response_range.kvs[0].value == b"2"
    assert (await etcd.txn([compare(b"a", "value", "=", b"2")])).succeeded


async def test_watch_from_a_revision_with_deletes(etcd: Etcd) -> None:
    first = await etcd.put(b"/a/1", b"x")
    await etcd.delete(b"/a/1")
    await etcd.put(b"/a/2", b"y")
    watch = etcd.watch(b"/a/", prefix=True, start_revision=first)
    assert await collect(watch, 3) == [(PUT, b"/a/1"), (DELETE, b"/a/1"), (PUT, b"/a/2")]
    await etcd.put(b"/b", b"z")
    await etcd.put(b"/a/3", b"z")
    assert await collect(watch, 1) == [(PUT, b"/a/3")]
    await watch.aclose()


async def test_a_revision_in_many_fragments_is_one_batch(etcd: Etcd) -> None:
    watch = etcd.watch(b"/a/", prefix=True)
    await anext(watch)
    await etcd.txn([], [op_put(b"/a/%d" % n, b"x" * 60_000) for n in range(24)])
    batch = await asyncio.wait_for(anext(watch), 10)
    assert len(batch.events) == 24
    await watch.aclose()


async def test_compaction_is_told(etcd: Etcd) -> None:
    for _ in range(5):
        revision = await etcd.put(b"a", b"x")
    await etcd.compact(revision)
    with pytest.raises(EtcdCompacted):
        await etcd.range(b"a", revision=2)
    watch = etcd.watch(b"a", start_revision=2)
    with pytest.raises(EtcdCompacted) as caught:
        await collect(watch, 1)
    assert caught.value.compact_revision == revision


async def test_leases(etcd: Etcd) -> None:
    lease = await etcd.lease_grant(30)
    await etcd.put(b"a", b"x", lease=lease)
    assert await etcd.lease_keepalive(lease) == 30
    await etcd.lease_revoke(lease)
    assert await etcd.get(b"a") is None
    with pytest.raises(LeaseGone):
        await etcd.lease_keepalive(lease)
    with pytest.raises(LeaseGone):
        await etcd.put(b"a", b"x", lease=lease)


async def test_kill_ends_watches_and_calls_and_a_restart_goes_on(server: Server, etcd: Etcd) -> None:
    revision = await etcd.put(b"a", b"1")
    watch = etcd.watch(b"a")
    await anext(watch)
    await server.kill()
    with pytest.raises(EtcdUnavailable):
        await asyncio.wait_for(anext(watch), 10)
    with pytest.raises(EtcdUnavailable):
        await etcd.put(b"a", b"2")
    await server.start()
    for _ in range(100):
        try:
            assert (await etcd.get(b"a")).value == b"1"  # type: ignore[union-attr]
            break
        except EtcdUnavailable:
            await asyncio.sleep(0.1)
    watch = etcd.watch(b"a", start_revision=revision)
    assert await collect(watch, 1) == [(PUT, b"a")]
    await watch.aclose()


def test_prefixes() -> None:
    assert prefix_end(b"/a/") == b"/a0"
    assert prefix_end(b"a\xff") == b"b"
    assert prefix_end(b"") == b"\x00"


async def test_wrong_endpoints_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Etcd.connect([])
    with pytest.raises(ConfigError, match="not on this machine"):
        Etcd.connect(["http://etcd:2379"])
