"""Every benchmark runs, in its short mode, and prints its lines: a figure that can no longer be taken is noticed here.

What the figures are on a machine shared with tests says nothing and is not asserted. Not run here: bench_front, which
needs minutes of real clusters.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from tests.integration.etcd_server import find_etcd

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"^.+: [-+.e\d]+ .*\((goal [<>]= .+|no goal)\) (ok|short)$", re.MULTILINE)
FIGURES = {
    "engage": 3, "fanout": 5, "fleet": 10, "growth": 6, "list_memory": 6, "memory": 2, "placement": 2,
    "processes": 10, "queue": 4, "reclock": 2, "restart": 4, "splice": 9, "work": 15,
}  # fmt: skip
"""Script -> lines at least."""
NEED_ETCD = ("fanout", "fleet", "growth", "processes", "reclock", "restart")


def test_every_script_is_known() -> None:
    found = {path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").glob("bench_*.py")}
    assert found == {*FIGURES, "front"}


@pytest.mark.parametrize("name", FIGURES)
async def test_it_runs_and_prints_its_lines(name: str) -> None:
    if name in NEED_ETCD and find_etcd() is None:
        pytest.skip("no etcd: neither on PATH nor built by `make kube`")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "benchmarks" / f"bench_{name}.py"), "--short",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment, cwd=ROOT,
    )  # fmt: skip
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 240)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = out.decode()
    assert process.returncode == 0, said
    assert len(LINE.findall(said)) >= FIGURES[name], said
