"""A kubeconfig's current context: where the front is, its authority, who we are.

Plain credentials are read here. kubernetes_asyncio, which would do it too, takes a second to load: it is asked only for
those that a plugin or an identity provider gives.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEMO = Path(".reclock/kubeconfig")
_CLUSTER_FILES = ("certificate-authority",)
_USER_FILES = ("client-certificate", "client-key", "tokenFile")


class KubeconfigError(Exception):
    """What is wrong with it, for people."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a current context names; files are absolute."""

    cluster: dict[str, Any]
    user: dict[str, Any]
    context: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a server: `authorization` is the header's value, empty with a certificate; `tls` is None for http."""

    server: str
    authorization: str
    tls: ssl.SSLContext | None
    server_name: str | None
    proxy: str | None


def kubeconfig_path(given: str | None) -> str:
    """The kubeconfig to use: the flag, $KUBECONFIG, the demo's in this directory, or the user's."""
    if given:
        return given
    if from_environment := os.environ.get("KUBECONFIG"):
        return from_environment
    return str(DEMO if DEMO.exists() else Path.home() / ".kube" / "config")


def current(paths: str) -> Context:
    """The current context of one file, or of several in the form of $KUBECONFIG: the first that says something counts.

    Raises KubeconfigError.
    """
    merged: dict[str, dict[str, Any]] = {"clusters": {}, "users": {}, "contexts": {}}
    chosen = ""
    for path in _files(paths):
        config = _read(path)
        chosen = chosen or str(config.get("current-context") or "")
        for part, key, files in (
            ("clusters", "cluster", _CLUSTER_FILES), ("users", "user", _USER_FILES), ("contexts", "context", ()),
        ):  # fmt: skip
            for name, entry in _entries(config, part, key):
                merged[part].setdefault(name, _absolute(entry, path.absolute().parent, files))
    if not chosen:
        raise KubeconfigError("it has no current-context")
    context = _named(merged, "contexts", chosen)
    cluster = _named(merged, "clusters", str(context.get("cluster", "")))
    if not cluster.get("server"):
        raise KubeconfigError(f"its cluster {context.get('cluster')!r} has no server")
    user = context.get("user")
    return Context(cluster, _named(merged, "users", str(user)) if user else {}, context)


def _files(paths: str) -> list[Path]:
    given = [Path(path).expanduser() for path in paths.split(os.pathsep) if path]
    there = [path for path in given if path.exists()]
    if not there:
        raise KubeconfigError("there is no such file")
    return there


def _read(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise KubeconfigError(error.strerror or str(error)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"it is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise KubeconfigError("it is no kubeconfig")
    return config


def _entries(config: dict[str, Any], part: str, key: str) -> list[tuple[str, dict[str, Any]]]:
    found = config.get(part) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) and "name" in one for one in found):
        raise KubeconfigError(f"its {part} are no list of named entries")
    return [(str(one["name"]), one.get(key) or {}) for one in found]


def _named(merged: dict[str, dict[str, Any]], part: str, name: str) -> dict[str, Any]:
    entry = merged[part].get(name)
    if entry is None:
        raise KubeconfigError(f"its {part} have no entry {name!r}")
    if not isinstance(entry, dict):
        raise KubeconfigError(f"its entry {name!r} of {part} is no mapping")
    return entry


def _absolute(part: Any, base: Path, keys: tuple[str, ...]) -> Any:
    """Files are named relative to the kubeconfig that names them."""
    if not isinstance(part, dict):
        return part
    return {key: str(base / str(value)) if key in keys and value else value for key, value in part.items()}


async def access(paths: str) -> Access:
    """Access by the current context. Raises KubeconfigError."""
    now = current(paths)
    cluster, user = now.cluster, now.user
    if user.get("exec") or user.get("auth-provider"):
        authorization, certificate, key = await _by_plugin(paths)
    else:
        authorization = _authorization(user)
        certificate, key = _bytes(user, "client-certificate"), _bytes(user, "client-key")
    server = str(cluster["server"]).rstrip("/")
    tls = None
    if server.startswith("https:"):
        verify = not cluster.get("insecure-skip-tls-verify")
        tls = _tls(_bytes(cluster, "certificate-authority"), certificate, key, verify)
    return Access(server, authorization, tls, cluster.get("tls-server-name") or None, cluster.get("proxy-url") or None)


def _authorization(user: dict[str, Any]) -> str:
    if user.get("tokenFile"):
        return f"Bearer {_content(user['tokenFile'], 'tokenFile').decode(errors='replace').strip()}"
    if user.get("token"):
        return f"Bearer {user['token']}"
    if user.get("username") and user.get("password"):
        pair = f"{user['username']}:{user['password']}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    return ""


def _bytes(part: dict[str, Any], key: str) -> bytes:
    """Of `<key>-data`, else of the file that `<key>` names; empty without either."""
    if data := part.get(f"{key}-data"):
        try:
            return base64.b64decode(str(data))
        except ValueError:
            raise KubeconfigError(f"{key}-data is no base64") from None
    return _content(part[key], key) if part.get(key) else b""


def _content(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise KubeconfigError(f"{key} {path}: {error.strerror}") from error


def _tls(authority: bytes, certificate: bytes, key: bytes, verify: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=authority.decode("ascii", "ignore") or None)
    except (ssl.SSLError, ValueError):
        raise KubeconfigError("certificate-authority holds no usable certificate") from None
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate and key:
        # OpenSSL reads files only: one that nobody else may read, and that is gone at once.
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(certificate.rstrip(b"\n") + b"\n" + key)
            pair.flush()
            try:
                context.load_cert_chain(pair.name)
            except ssl.SSLError:
                raise KubeconfigError("client-certificate and client-key are no matching pair") from None
    return context


async def _by_plugin(paths: str) -> tuple[str, bytes, bytes]:
    """Authorization, certificate and key from what the context's user names."""
    from kubernetes_asyncio import client, config

    settings = client.Configuration()
    try:
        await config.load_kube_config(paths, client_configuration=settings)
    except Exception as error:  # the loader raises whatever its providers do
        raise KubeconfigError(f"its user's credentials cannot be had: {error}") from error
    certificate = _content(settings.cert_file, "client-certificate") if settings.cert_file else b""
    key = _content(settings.key_file, "client-key") if settings.key_file else b""
    return str(settings.api_key.get("BearerToken", "")), certificate, key
