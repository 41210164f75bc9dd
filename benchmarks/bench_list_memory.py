"""Memory of one list of many pods: what the serving process takes above its state, while the client reads and while not.

Method: members (one process) make their answers as they send them; reads and the log stand in a process of their own,
whose resident size is taken every 5 ms; the client reads all, or nothing for two seconds and then all. Pods of some
4.3 kB, each with 200 bytes that no other has. Figures are MiB above the resident size before the list, and what the
members had sent while the client did not read.

    python benchmarks/bench_list_memory.py [--short] [COUNT]      100,000 by default, which takes about a minute
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit"), str(ROOT / "benchmarks")]

from aiohttp import ClientSession, web  # noqa: E402

PROTOBUF = "application/vnd.kubernetes.protobuf"
MEMBERS, SEEDS, FIRST = 2, 64, 1_000_000
MIB = 1 << 20


def uid(number: int) -> str:
    return f"{number:08d}-aaaa-4aaa-8aaa-{number:012d}"


class Pods:
    """Bytes of pods by number: those of a few seeds with the parts exchanged that tell them apart."""

    def __init__(self, protobuf: bool) -> None:
        import proto_model
        from pods import compact, pod

        self.protobuf = protobuf
        self.forms: list[list[bytes]] = []
        for seed in range(SEEDS):
            obj = pod(seed, typed=False, owner=False)
            obj["metadata"] |= {"name": "p" + "N" * 8, "namespace": "default", "uid": "U" * 36, "resourceVersion": "V" * 7}
            obj["metadata"]["annotations"] = {"example.com/own": "X" * 200}
            body = proto_model.body_of(obj) if protobuf else compact(obj)
            self.forms.append(self._cut(body))

    @staticmethod
    def _cut(body: bytes) -> list[bytes]:
        """The parts between name, uid, version and what is its own, which come in another order in each encoding."""
        marks = sorted((b"N" * 8, b"U" * 36, b"V" * 7, b"X" * 200), key=body.index)
        parts = []
        for mark in marks:
            before, _, body = body.partition(mark)
            parts += [before, mark]
        return [*parts, body]

    def one(self, number: int) -> bytes:
        own = random.Random(number).randbytes(100).hex().encode()
        fill = {b"N": b"%08d" % number, b"U": uid(number).encode(), b"V": b"%07d" % (FIRST + number), b"X": own}
        form = self.forms[number % SEEDS]
        return b"".join(fill[part[:1]] if at % 2 else part for at, part in enumerate(form))

    def list(self, numbers: range, version: int) -> Iterator[bytes]:
        """A whole list, in pieces."""
        if self.protobuf:
            import proto_model as model

            sizes = [len(model.record(2, self.one(number))) for number in range(SEEDS)]
            head = model.record(1, model.record(1, b"") + model.record(2, b"%d" % version) + model.record(3, b""))
            total = len(head) + sum(sizes[number % SEEDS] for number in numbers)
            names = model.record(1, model.record(1, b"v1") + model.record(2, b"PodList"))
            yield b"k8s\0" + names + model.varint(2 << 3 | 2) + model.varint(total) + head
            for number in numbers:
                yield model.record(2, self.one(number))
            yield b"\x1a\x00\x22\x00"
            return
        yield b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[' % version
        for number in numbers:
            yield (b"," if number != numbers[0] else b"") + self.one(number)
        yield b"]}\n"


async def serve_members(count: int) -> None:
    """MEMBERS apiservers on one port each; `/sent` says how many bytes went out."""
    sent = 0
    pods = {kind: Pods(kind) for kind in (False, True)}

    def handler(member: int) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            nonlocal sent
            if request.path == "/sent":
                return web.Response(text=str(sent))
            response = web.StreamResponse()
            response.enable_chunked_encoding()
            await response.prepare(request)
            own = range(member, count, MEMBERS)
            parts, size = [], 0
            for part in pods[request.headers["Accept"].startswith(PROTOBUF)].list(own, FIRST + count):
                parts.append(part)
                size += len(part)
                if size > 65536:
                    await response.write(b"".join(parts))
                    sent, parts, size = sent + size, [], 0
            await response.write(b"".join(parts))
            return response

        return handle

    ports = []
    for member in range(MEMBERS):
        runner = web.ServerRunner(web.Server(handler(member)))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


async def serve_reads(count: int, ports: list[int]) -> None:
    """Reads over a log that has every pod."""
    from types import SimpleNamespace

    from reads_fake import FakeClock, FakeOwners, kubeconfig

    from _fastpath.marker import Marker
    from services.aggregator.clock.position import Position
    from services.aggregator.front.errors import response as error_response
    from services.aggregator.front.request_info import parse
    from services.aggregator.reads import Reads
    from services.aggregator.types import Call, User
    from services.common.errors import StatusError
    from services.common.kube.client import KubeClient

    clock, owners, names = FakeClock(), FakeOwners(), [f"m{i}" for i in range(MEMBERS)]
    positions = {name: Position(f"{name}-uid/0", FIRST + count, FIRST + count) for name in names}
    for name, port in zip(names, ports, strict=True):
        client = await KubeClient.connect(kubeconfig(f"http://127.0.0.1:{port}"), name=name)
        clock.members[name] = SimpleNamespace(cluster=name, client=client, state="Live", message="", serves=True, position=positions[name])  # fmt: skip
    labels = {"app": "web"}
    for start in range(0, count, 120):
        markers = [Marker(names[n % MEMBERS], f"{names[n % MEMBERS]}-uid/0", "default", f"p{n:08d}", uid(n), FIRST + n, labels)
                   for n in range(start, min(start + 120, count))]  # fmt: skip
        clock.commit({}, *markers)
        clock.vectors.clear()
    clock.commit(positions)
    clocks: Any = SimpleNamespace(get=lambda group, resource: clock, resources={"pods": clock})
    reads = Reads(clocks, owners, fleet_id="f", token_secret=b"s", identity=lambda call, aggregated: {})  # type: ignore[arg-type]

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        info = parse(request.method, request.rel_url.raw_path, request.rel_url.raw_query_string)
        try:
            return await reads.list(Call(request, info, User("jane")), clock.aggregated)  # type: ignore[arg-type]
        except StatusError as error:
            return error_response(error)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps(runner.addresses[0][1]), flush=True)
    await asyncio.Event().wait()


def resident(pid: int) -> int:
    """Bytes of RSS."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Resident:
    """The highest resident size of a process above what it had before its first list."""

    def __init__(self, pid: int, before: int) -> None:
        self._pid, self._before = pid, before
        self._highest = resident(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self._highest = max(self._highest, resident(self._pid))

    def close(self) -> float:
        """MiB."""
        self._over.set()
        self._thread.join()
        return (self._highest - self._before) / MIB


async def measure(
    port: int, resident: Resident, members: list[int], accept: str, count: int, *, wait: float = 0.0, packed: bool = False
) -> tuple[float, float, float]:
    """(MiB above the state, MiB that members sent before the client read, MiB of the list)."""
    head = f"GET /api/v1/pods HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
    writer.write((head + ("Accept-Encoding: gzip\r\n" if packed else "") + "\r\n").encode())
    sent = 0
    if wait:
        async with ClientSession() as session:
            url = f"http://127.0.0.1:{members[0]}/sent"
            async with session.get(url) as answer:
                before = int(await answer.text())
            await asyncio.sleep(wait)
            async with session.get(url) as answer:
                sent = int(await answer.text()) - before
    size = 0
    assert b"200" in await reader.readline()
    while data := await reader.read(1 << 20):
        size += len(data)
    writer.close()
    assert packed or size > count * 1000, f"only {size} bytes came"
    return resident.close(), sent / MIB, size / MIB


async def run(count: int) -> dict[str, tuple[float, float, float]]:
    """All forms, by name."""
    processes: list[subprocess.Popen[str]] = []

    def start(*args: str) -> Any:
        process = subprocess.Popen([sys.executable, __file__, *args], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        return json.loads(process.stdout.readline())

    try:
        members = await asyncio.to_thread(start, "members", str(count))
        port = await asyncio.to_thread(start, "reads", str(count), json.dumps(members))
        pid = processes[-1].pid
        out = {}
        state = resident(pid)
        for name, accept, options in (
            ("JSON", "application/json", {}), ("JSON, gzip", "application/json", {"packed": True}),
            ("JSON, slow client", "application/json", {"wait": 2.0}), ("protobuf", PROTOBUF, {}),
            ("protobuf, gzip", PROTOBUF, {"packed": True}), ("protobuf, slow client", PROTOBUF, {"wait": 2.0}),
        ):  # fmt: skip
            began = time.monotonic()
            out[name] = await measure(port, Resident(pid, state), members, accept, count, **options)  # type: ignore[arg-type]
            if __name__ == "__main__":
                took = time.monotonic() - began
                print(f"# {name}: {out[name][0]:.1f} MiB, members {out[name][1]:.1f}, list {out[name][2]:.0f} MiB, {took:.1f} s", file=sys.stderr)
        return out
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> int:
    if sys.argv[1:2] == ["members"]:
        asyncio.run(serve_members(int(sys.argv[2])))
    elif sys.argv[1:2] == ["reads"]:
        asyncio.run(serve_reads(int(sys.argv[2]), json.loads(sys.argv[3])))
    else:
        from report import line

        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--short", action="store_true")
        parser.add_argument("count", type=int, nargs="?", default=100_000)
        given = parser.parse_args()
        count = 2000 if given.short else given.count
        for name, (above, _, size) in asyncio.run(run(count)).items():
            line(f"list of {count} pods, {size:.0f} MiB, {name}", above, "MiB", 64, at_least=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
