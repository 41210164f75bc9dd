"""`reclock clusters`, `describe`, `watch`, and the completion of names, at a front of this process."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from kube_fake import KubeFake, eventually, status

from reclock.cli import clusters as command
from reclock.cli.api import GROUP, CliError
from reclock.cli.api import _run as connected
from reclock.cli.output import Format

EAST = {
    "metadata": {"name": "east", "labels": {"region": "eu"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"taints": [{"key": "reclock.dev/maintenance", "effect": "NoSchedule"}]},
    "status": {
        "provider": "kubeconfig-file", "source": "/etc/east#east", "server": "https://east:1", "uid": "uid-1",
        "kubeVersion": "v1.34.4", "latency": "1.2ms", "engagedAt": "2026-01-01T00:00:00Z",
        "latencies": {"p50": "1.2ms", "p99": "9.0ms", "samples": 200},
        "conditions": [{"type": "Ready", "status": "Unknown", "reason": "Unreachable", "message": "its readiness is not known",
                        "lastTransitionTime": "2026-01-02T00:00:00Z"}],
        "history": [
            {"time": "2026-01-01T00:00:00Z", "type": "Reachable", "status": "True", "reason": "Answers"},
            {"time": "2026-01-02T00:00:00Z", "type": "Reachable", "status": "False", "reason": "Timeout", "message": "slow"},
        ],
    },
}  # fmt: skip
PROBLEM = {"provider": "kubeconfig-file", "source": "/etc/east#east", "message": "is no YAML", "since": "2026-01-02T00:00:00Z"}


AWAY: list[bool] = []
"""Something in it: discovery does not answer."""


@pytest_asyncio.fixture
async def front(tmp_path: Path) -> AsyncIterator[str]:
    """A front with one cluster; gives the path of its kubeconfig."""

    async def listed(request: web.Request) -> web.Response:
        return web.json_response({"items": [EAST]})

    async def one(request: web.Request) -> web.Response:
        return web.json_response(EAST) if request.path.endswith("/east") else status(404, "NotFound", 'clusters "x" not found')

    async def sources(request: web.Request) -> web.Response:
        if AWAY:
            return status(503, "ServiceUnavailable", "asking discovery: failed to connect")
        return web.json_response({"problems": [PROBLEM]})

    fake = KubeFake()
    fake.extra_routes = [
        web.get(f"{GROUP}/clusters", listed), web.get(f"{GROUP}/clusters/{{name}}", one), web.get("/reclock/sources", sources),
    ]  # fmt: skip
    async with fake:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(fake.kubeconfig()))
        yield str(path)


async def test_a_cluster_is_described(front: str, capsys: pytest.CaptureFixture[str]) -> None:
    await connected(front, lambda api: command.describe(api, "east", Format.table))
    text = capsys.readouterr().out
    for part in (
        "Source:     /etc/east#east", "Latency:    p50 1.2ms, p99 9.0ms over 200 probes", "Labels:     region=eu",
        "Ready   Unknown", "is no YAML (since ", "reclock.dev/maintenance:NoSchedule",
    ):  # fmt: skip
        assert part in text, text
    assert text.index("Timeout") < text.index("Answers"), "the newest change comes first"
    await connected(front, lambda api: command.describe(api, "east", Format.json))
    assert json.loads(capsys.readouterr().out) == {"cluster": EAST, "problems": [PROBLEM]}
    await connected(front, lambda api: command.describe(api, "east", Format.yaml))
    assert yaml.safe_load(capsys.readouterr().out)["cluster"] == EAST
    with pytest.raises(CliError, match='"x" not found'):
        await connected(front, lambda api: command.describe(api, "x", Format.table))


async def test_clusters_are_shown_while_discovery_is_away(
    front: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "AWAY", [True])
    for show in (lambda api: command.clusters(api, Format.table), lambda api: command.describe(api, "east", Format.table)):
        await connected(front, show)
        out = capsys.readouterr().out
        assert "https://east:1" in out and "shown is what was known last: asking discovery: failed to connect" in out


async def test_clusters_are_shown_live(front: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    def enough() -> bool:
        shown.append(capsys.readouterr().out)
        return "".join(shown).count("https://east:1") >= 2

    watching = asyncio.create_task(connected(front, lambda api: command.watch(api, 0.05)))
    await eventually(enough)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert "kubeconfig-file: /etc/east#east: is no YAML" in "".join(shown)


@pytest.mark.parametrize(("typed", "found"), [("e", ["east"]), ("w", [])])
async def test_names_are_completed(front: str, typed: str, found: list[str]) -> None:
    environment: dict[str, Any] = {
        "_RECLOCK_COMPLETE": "complete_bash", "COMP_WORDS": f"reclock clusters describe {typed}", "COMP_CWORD": "3",
        "_TYPER_COMPLETE_ARGS": f"reclock clusters describe {typed}", "KUBECONFIG": front, "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    code = "from reclock.cli.app import app; app(prog_name='reclock')"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await child.communicate()
    assert out.decode().split() == found, err.decode()
