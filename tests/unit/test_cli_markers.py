"""`reclock markers …` against a server that answers line by line."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner

from reclock.cli.app import app

Lines = list[dict[str, Any]]
MEMBER = {"resource": "pods", "cluster": "east", "objects": 7, "problem": ""}


class Server:
    """Answers `/reclock/markers/<page>` with the lines set for it."""

    def __init__(self) -> None:
        self.pages: dict[str, Lines] = {}
        self.asked: list[str] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        assert self._up.wait(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._start())
        self._loop.run_forever()

    async def _start(self) -> None:
        web_app = web.Application()
        web_app.router.add_route("*", "/reclock/markers/{page}", self._answer)
        runner = web.AppRunner(web_app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._up.set()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.rel_url}")
        lines = self.pages[request.match_info["page"]]
        return web.Response(text="".join(json.dumps(one) + "\n" for one in lines))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.stop()


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    path.write_text(
        yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context],
            "users": [{"name": "u", "user": {}}], "current-context": "c",
        })
    )  # fmt: skip
    return str(path)


def run(kubeconfig: str, *argv: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["markers", *argv, "--kubeconfig", kubeconfig])
    return result.exit_code, result.output


def test_verify_says_what_differs_and_fails_then(server: Server, kubeconfig: str) -> None:
    compared = {"kind": "Compared", **MEMBER}
    server.pages["verify"] = [compared, {"kind": "Done"}]
    code, text = run(kubeconfig, "verify", "-r", "pods")
    assert code == 0 and "7 objects of 1 clusters compared, 0 differ" in text
    assert server.asked == ["GET /reclock/markers/verify?resource=pods"]
    difference = {
        "kind": "Difference", "resource": "pods", "cluster": "east", "namespace": "ns", "name": "web",
        "what": "Stale", "message": "marker: 5, the cluster has 6",
    }  # fmt: skip
    server.pages["verify"] = [difference, compared, {"kind": "Done"}]
    code, text = run(kubeconfig, "verify")
    assert code == 2 and "marker: 5, the cluster has 6" in text
    server.pages["verify"] = [{**compared, "problem": "it is Unreachable"}, {"kind": "Done"}]
    code, text = run(kubeconfig, "verify")
    assert code == 2 and "was not compared: it is Unreachable" in text


def test_an_answer_that_fails_or_breaks_off_is_no_success(server: Server, kubeconfig: str) -> None:
    server.pages["verify"] = [{"kind": "Failed", "message": "etcd is away"}]
    code, text = run(kubeconfig, "verify")
    assert code == 1 and "etcd is away" in text
    server.pages["verify"] = [{"kind": "Compared", **MEMBER}]
    code, text = run(kubeconfig, "verify")
    assert code == 1 and "ended before the work did" in text


def test_rebuild_asks_first_and_names_the_fleet(server: Server, kubeconfig: str) -> None:
    server.pages["fleet"] = [{"kind": "Fleet", "fleetId": "f-1"}, {"kind": "Done"}]
    server.pages["rebuild"] = [
        {"kind": "Rebuilt", "markers": 12, "resources": 2, "done": 2, "waiting": []}, {"kind": "Done"}
    ]  # fmt: skip
    code, text = run(kubeconfig, "rebuild")
    assert code == 1 and "POST" not in " ".join(server.asked)
    code, text = run(kubeconfig, "rebuild", "--yes")
    assert code == 0 and "12 markers of 2 resources rebuilt" in text
    assert server.asked[-1] == "POST /reclock/markers/rebuild?fleetId=f-1"
