"""The command line's own reading of kubeconfigs: credentials of each kind, several files, what is wrong."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.local.pki import Authority
from reclock.cli import kubeconfig as kubeconfig_command
from reclock.cli.access import KubeconfigError, access, current
from reclock.cli.api import CliError
from reclock.cli.api import _run as connected

API = "client.authentication.k8s.io/v1"


def written(path: Path, user: dict[str, Any] | None = None, name: str = "one", **cluster: Any) -> str:
    config = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": "https://127.0.0.1:1/"} | cluster}],
        "users": [{"name": name, "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


async def test_credentials_of_each_kind(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    for user, expected in (
        ({}, ""),
        ({"token": "abc"}, "Bearer abc"),
        ({"token": "abc", "tokenFile": "token"}, "Bearer from-file"),
        ({"username": "me", "password": "secret"}, "Basic " + base64.b64encode(b"me:secret").decode()),
    ):
        found = await access(written(tmp_path / "config", user))
        assert (found.authorization, found.server) == (expected, "https://127.0.0.1:1")


async def test_certificates_as_data_and_as_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    alice, bob = authority.client("alice", ["users"]), authority.client("bob")
    vouched = {"certificate-authority-data": authority.pair.cert_base64()}
    inline = {"client-certificate-data": alice.cert_base64(), "client-key-data": alice.key_base64()}
    named = {"client-certificate": "alice.crt", "client-key": "alice.key"}
    for config in (
        written(tmp_path / "a", inline, **vouched),
        written(tmp_path / "b", named, **{"certificate-authority": "ca.crt"}),
    ):
        context = (await access(config)).tls
        assert context is not None and [one["subject"] for one in context.get_ca_certs()] == [((("commonName", "ca"),),)]
    with pytest.raises(KubeconfigError, match="no matching pair"):
        await access(written(tmp_path / "c", {**inline, "client-key-data": bob.key_base64()}))
    with pytest.raises(KubeconfigError, match=r"client-key .*none.key: No such file"):
        await access(written(tmp_path / "d", {**named, "client-key": "none.key"}))
    context = (await access(written(tmp_path / "e", **{"insecure-skip-tls-verify": True}))).tls
    assert context is not None and not context.check_hostname


async def test_a_front_that_is_away_is_said_in_plain_words(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else's either
        taken.bind(("127.0.0.1", 0))
        server = f"https://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CliError, match=rf"^{server} does not answer \(Connection refused\); is the fleet up\?"):
            await connected(written(tmp_path / "config", server=server), lambda api: api.call("GET", "/version"))


async def test_a_plugin_is_run(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    answer = json.dumps({"apiVersion": API, "kind": "ExecCredential", "status": {"token": "made"}})
    plugin.write_text(f"#!/bin/sh\necho '{answer}'\n")
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": API, "command": str(plugin), "interactiveMode": "Never"}}
    assert (await access(written(tmp_path / "config", user))).authorization == "Bearer made"
    user["exec"]["command"] = str(tmp_path / "none")
    with pytest.raises(KubeconfigError, match="credentials cannot be had"):
        await access(written(tmp_path / "config", user))


def test_of_several_files_the_first_that_says_something_counts(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a", name="one"), written(tmp_path / "b", {"tokenFile": "t"}, name="two")
    paths = os.pathsep.join([str(tmp_path / "none"), second, first])
    assert current(paths).context["cluster"] == "two"
    assert current(paths).user == {"tokenFile": str(tmp_path / "t")}
    made = yaml.safe_load(kubeconfig_command.text(paths, "east"))
    assert made["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1/clusters/east"
    assert made["users"][0]["user"]["tokenFile"] == str(tmp_path / "t")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no kubeconfig"),
        ("a: [", "no YAML"),
        ("clusters: 1\ncurrent-context: x", "clusters are no list"),
        ("clusters: []", "no current-context"),
        ("current-context: x", "contexts have no entry 'x'"),
        ("current-context: x\ncontexts: [{name: x, context: {cluster: c}}]", "clusters have no entry 'c'"),
        ("current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c}]", "has no server"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeconfigError, match=said):
        current(str(path))
    with pytest.raises(KubeconfigError, match="no such file"):
        current(str(tmp_path / "none"))


@pytest.mark.parametrize("module", ["reclock.cli.app", "deploy.local.ctl"])
def test_commands_load_no_more_than_they_use(module: str) -> None:
    """A second of imports before each answer would be most of what the command takes."""
    heavy = "{'kubernetes_asyncio', 'opentelemetry.sdk', 'cryptography', 'grpc'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
