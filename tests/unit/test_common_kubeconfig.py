"""Kubeconfigs: good ones, and each kind of bad one."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_fake import kubeconfig, make_ca, make_pair, pem

from services.common.kube import kubeconfig as kc
from services.common.kube.credentials import Credentials, run_plugin
from services.common.kube.kubeconfig import KubeconfigError


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "empty"),
        (b"a: [", "no YAML"),
        (b"\xff\xfe\x00", "no "),
        (b"[]", "no kubeconfig"),
        (b"kind: Pod", "no kubeconfig"),
        (b"kind: Config\nclusters: 3", "clusters is no list"),
        (b"kind: Config\ncontexts: [{context: {}}]", "contexts is no list of named"),
    ],
)
def test_what_is_no_kubeconfig(data: bytes, expected: str) -> None:
    with pytest.raises(KubeconfigError, match=expected):
        kc.parse(data)


def test_a_cut_off_file_is_incomplete() -> None:
    text = yaml.safe_dump(kubeconfig("a", {"server": "https://x"})).encode()
    assert kc.parse(text, complete=True)
    with pytest.raises(KubeconfigError, match="incomplete"):
        kc.parse(text[: text.index(b"users")], complete=True)


def bad(**changes: Any) -> dict[str, Any]:
    config = kubeconfig("a", {"server": "https://x:1"}, {"token": "t"})
    config.update(changes)
    return config


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (bad(contexts=[], **{"current-context": None}), "no contexts"),
        (bad(**{"current-context": "b"}), "'b' is not in contexts"),
        (bad(clusters=[]), "'a' is not in clusters"),
        (bad(users=[]), "'a' is not in users"),
        (bad(clusters=[{"name": "a", "cluster": {"server": "ftp://x"}}]), "no http"),
        (bad(clusters=[{"name": "a", "cluster": {"server": "https://"}}]), "no http"),
        (bad(clusters=[{"name": "a", "cluster": {}}]), "no http"),
        (bad(users=[{"name": "a", "user": {"client-key-data": "!!"}}]), "base64"),
        (bad(users=[{"name": "a", "user": {"client-key-data": b64(b"x")}}]), "PEM"),
        (bad(users=[{"name": "a", "user": {"client-key": "/does/not/exist"}}]), "No such file"),
        (bad(users=[{"name": "a", "user": {"client-key": "relative"}}]), "relative"),
        (bad(users=[{"name": "a", "user": {}}, {"name": "a", "user": {}}]), "more than once"),
    ],
)
def test_bad_contexts(config: dict[str, Any], expected: str) -> None:
    for section in ("clusters", "users", "contexts"):
        config.setdefault(section, [])
    with pytest.raises(KubeconfigError, match=expected):
        kc.single(config)


def test_relative_files_are_inlined(tmp_path: Path) -> None:
    ca_key, ca = make_ca()
    cert, key = make_pair(ca_key, "ca", "me")
    for name, data in (("ca.crt", pem(ca)), ("me.crt", cert), ("me.key", key), ("token", b"secret\n")):
        (tmp_path / name).write_bytes(data)
    config = kubeconfig(
        "a", {"server": "https://x:1", "certificate-authority": "ca.crt"},
        {"client-certificate": "me.crt", "client-key": "me.key", "tokenFile": "token"},
    )  # fmt: skip
    single = kc.single(config, base=tmp_path, inline_token=True)
    assert single["clusters"][0]["cluster"] == {
        "server": "https://x:1", "certificate-authority-data": b64(pem(ca)),
    }  # fmt: skip
    assert single["users"][0]["user"] == {
        "client-certificate-data": b64(cert), "client-key-data": b64(key), "token": "secret",
    }  # fmt: skip
    Credentials(single)


def test_certificates_that_are_no_certificates_are_refused() -> None:
    junk = b64(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(KubeconfigError, match="certificate"):
        Credentials(kc.single(kubeconfig("a", {"server": "https://x", "certificate-authority-data": junk})))
    with pytest.raises(KubeconfigError, match="pair"):
        user = {"client-certificate-data": junk, "client-key-data": junk}
        Credentials(kc.single(kubeconfig("a", {"server": "https://x"}, user)))


def test_digest_ignores_order_only() -> None:
    one = kubeconfig("a", {"server": "https://x"}, {"token": "t"})
    assert kc.digest(one) == kc.digest(dict(reversed(one.items())))
    assert kc.digest(one) != kc.digest(kubeconfig("a", {"server": "https://x"}, {"token": "u"}))


def test_proxies_other_than_http_are_refused() -> None:
    config = kubeconfig("a", {"server": "https://x", "proxy-url": "socks5://p:1"})
    with pytest.raises(KubeconfigError, match="socks5"):
        Credentials(kc.single(config))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 3", "exit code 3"),
        ("echo not json", "no JSON"),
        ("echo '{}'", "no ExecCredential"),
        ("""echo '{"kind":"ExecCredential","apiVersion":"v9","status":{}}'""", "another apiVersion"),
    ],
)
async def test_failing_plugins_are_named(script: str, expected: str) -> None:
    with pytest.raises(KubeconfigError, match=expected):
        await run_plugin({"command": "sh", "args": ["-c", script], "apiVersion": "v1"}, {})
    with pytest.raises(KubeconfigError, match="No such file"):
        await run_plugin({"command": "/does/not/exist", "apiVersion": "v1"}, {})
