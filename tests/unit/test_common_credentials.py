"""Credentials that expire, and plugins that hang, fail or print noise: nobody waits, and what is good is used to its end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kube_fake import KubeFake, eventually

from services.common.errors import MemberUnreachable
from services.common.kube import credentials
from services.common.kube.client import KubeClient
from services.common.kube.resource import PODS
from services.discovery.probe import probe

V1 = "client.authentication.k8s.io/v1"


class Plugin:
    """A script that prints what is in a file, after what is in another one has run."""

    def __init__(self, folder: Path) -> None:
        self.answer, self.before, self.runs = folder / "answer", folder / "before", folder / "runs"
        self.before.write_text("")
        self.runs.write_text("")

    def give(self, token: str, seconds: float | None = None) -> None:
        """Answer with a token that lives so long."""
        status: dict[str, Any] = {"token": token}
        if seconds is not None:
            status["expirationTimestamp"] = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
        self.answer.write_text(json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status}))

    @property
    def config(self) -> dict[str, Any]:
        script = f"echo $$ >> {self.runs}; . {self.before}; cat {self.answer}"
        return {"command": "sh", "args": ["-c", script], "apiVersion": V1}

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self.runs.read_text().split()]


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


@asynccontextmanager
async def connected(kube: KubeFake, plugin: Plugin) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(kube.kubeconfig(exec=plugin.config), name="east")
    try:
        yield client
    finally:
        await client.close()


def last_token(kube: KubeFake) -> str:
    return kube.headers[-1]["Authorization"].removeprefix("Bearer ")


async def test_a_token_is_renewed_before_its_end_while_it_is_still_used(plugin: Plugin) -> None:
    async with KubeFake() as kube, connected(kube, plugin) as client:
        plugin.give("one", 20)
        await client.list(PODS)
        plugin.give("two", 3600)
        plugin.before.write_text("sleep 0.3")
        client._credentials._expiry = 0.0  # its renewal is due; its end is not there yet
        await client.list(PODS)
        assert last_token(kube) == "one", "no request waits for a renewal that is early"
        await eventually(lambda: client._credentials.authorization == "Bearer two")
        await client.list(PODS)
        assert last_token(kube) == "two"
        assert len(plugin.pids) == 2
        # A renewal that fails is tried again; the token lives on until its end.
        plugin.before.write_text("exit 3")
        client._credentials._expiry = 0.0
        for _ in range(3):
            await client.list(PODS)
            await asyncio.sleep(0.05)
        assert last_token(kube) == "two"
        client._credentials._end = 0.0
        with pytest.raises(MemberUnreachable, match="exit code 3"):
            await client.list(PODS)


async def test_half_of_a_short_life_is_used() -> None:
    soon, end = credentials._lifetime((datetime.now(UTC) + timedelta(seconds=20)).isoformat())
    now = datetime.now(UTC).timestamp()
    assert 8 < soon - now < 11
    assert 18 < end - now < 20
    soon, _ = credentials._lifetime((datetime.now(UTC) + timedelta(hours=1)).isoformat())
    assert 3500 < soon - now < 3545
    assert credentials._lifetime(None) == (float("inf"), float("inf"))


async def test_a_plugin_that_hangs_holds_up_nobody_and_is_ended(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.give("one")
    plugin.before.write_text("exec sleep 1000")
    async with KubeFake() as kube, connected(kube, plugin) as client:
        found = await probe(client, 0.3)
        assert (found.reachable, found.reason) == (False, "CredentialsUnavailable")
        assert "its plugin has not answered yet" in found.message
        with pytest.raises(MemberUnreachable, match="not answered yet"):
            await client.request("GET", PODS.path(), timeout=0.2)
        assert len(plugin.pids) == 1, "all wait for the same run"
        # Other credentials are taken at once, and the hanging one is killed.
        await client.reconnect(kube.kubeconfig(token="static"))
        await client.list(PODS)
        assert last_token(kube) == "static"
        await eventually(lambda: not Path(f"/proc/{plugin.pids[0]}").exists())
    monkeypatch.setattr(credentials, "EXEC_TIMEOUT", 0.3)
    async with KubeFake() as kube, connected(kube, plugin) as client:
        with pytest.raises(MemberUnreachable, match="no answer in 0 s"):
            await client.list(PODS)
        plugin.before.write_text("")
        await client.list(PODS)
    assert not [task for task in asyncio.all_tasks() if "credentials" in task.get_name()]


async def test_a_client_that_is_closed_leaves_no_plugin(plugin: Plugin) -> None:
    plugin.before.write_text("exec sleep 1000")
    async with KubeFake() as kube:
        async with connected(kube, plugin) as client:
            waiting = asyncio.create_task(client.list(PODS))
            await eventually(lambda: plugin.pids)
        with pytest.raises(MemberUnreachable, match="closed"):
            await waiting
        await eventually(lambda: not Path(f"/proc/{plugin.pids[0]}").exists())


@pytest.mark.parametrize(
    ("before", "answer", "reason"),
    [
        ("echo Updating the plugin, please wait", None, "its answer is no JSON"),
        ("", "", "its answer is no JSON"),
        ("", '{"kind": "Token"}', "its answer is no ExecCredential"),
        ("", json.dumps({"kind": "ExecCredential", "apiVersion": "x/v9", "status": {}}), "another apiVersion than"),
        ("", json.dumps({"kind": "ExecCredential", "apiVersion": V1}), "its answer has no status"),
        ("", json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {}}), "neither a token nor a certificate"),
        ("", json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"token": "t", "expirationTimestamp": "x"}}),
         "is no RFC 3339 time"),
        ("head -c 3000000 /dev/zero; exit 1", None, "exit code 1"),
    ],
)  # fmt: skip
async def test_what_a_plugin_prints_is_judged(plugin: Plugin, before: str, answer: str | None, reason: str) -> None:
    plugin.give("secret-token")
    plugin.before.write_text(before)
    if answer is not None:
        plugin.answer.write_text(answer)
    async with KubeFake() as kube, connected(kube, plugin) as client:
        found = await probe(client, 20)
        assert (found.reachable, found.reason) == (False, "CredentialsUnavailable")
        assert reason in found.message
        assert "secret-token" not in found.message


async def test_a_plugin_is_told_its_cluster(plugin: Plugin, tmp_path: Path) -> None:
    plugin.give("one")
    plugin.before.write_text(f"echo $KUBERNETES_EXEC_INFO > {tmp_path}/info")
    async with KubeFake() as kube:
        config = kube.kubeconfig(exec={**plugin.config, "provideClusterInfo": True})
        config["clusters"][0]["cluster"]["extensions"] = [
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "east"}}, {"name": "other", "extension": 1},
        ]  # fmt: skip
        client = await KubeClient.connect(config, name="east")
        await client.list(PODS)
        await client.close()
        info = json.loads((tmp_path / "info").read_text())
        assert info["spec"] == {"interactive": False, "cluster": {"server": kube.url, "config": {"audience": "east"}}}


def test_this_file_leaves_no_child() -> None:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if "sleep" in Path(f"/proc/{pid}/cmdline").read_text()]
