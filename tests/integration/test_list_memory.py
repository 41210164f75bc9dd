"""A list's memory does not grow with the list: in every form, and while the client does not read."""

from __future__ import annotations

from benchmarks.bench_list_memory import run

COUNT = 25_000  # pods, 132 MiB of JSON; `python benchmarks/bench_list_memory.py` measures 100,000


async def test_fault_23_a_long_list_costs_little_memory() -> None:
    figures = await run(COUNT)
    assert set(figures) == {
        "JSON", "JSON, gzip", "JSON, slow client", "protobuf", "protobuf, gzip", "protobuf, slow client",
    }  # fmt: skip
    for name, (above, _, _) in figures.items():
        assert above < 64, (name, figures)
    _, sent, size = figures["JSON, slow client"]
    assert size > 120 and sent < 0.75 * size, "members are read no further than the read-ahead and the sockets' buffers"
