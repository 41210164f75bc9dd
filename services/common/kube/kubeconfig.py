"""Reading kubeconfigs: what is wrong with one, contexts, and one context on its own, files inlined."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FILE_KEYS = {
    "certificate-authority": "certificate-authority-data",
    "client-certificate": "client-certificate-data",
    "client-key": "client-key-data",
}


class KubeconfigError(ValueError):
    """What is wrong with a kubeconfig, and where. Names files and entries, never their contents."""


def parse(data: bytes, *, complete: bool = False) -> dict[str, Any]:
    """Decode YAML or JSON into a kubeconfig; checks that it is one.

    With `complete` all sections must be there (empty ones are written as null): a file that is cut off is
    often still YAML.
    """
    try:
        config = _load(data)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise KubeconfigError(f"is no YAML{where}") from None
    except (UnicodeDecodeError, ValueError):
        raise KubeconfigError("is no UTF-8 text") from None
    if config is None:
        raise KubeconfigError("is empty")
    if not isinstance(config, dict) or config.get("kind", "Config") != "Config":
        raise KubeconfigError("is no kubeconfig (kind: Config)")
    sections = ("clusters", "contexts", "users")
    missing = [section for section in sections if section not in config]
    if complete and missing:
        raise KubeconfigError(f"is incomplete: no {', '.join(missing)}")
    for section in sections:
        entries = config.get(section)
        if entries is None:
            config[section] = []
        elif not isinstance(entries, list) or any(
            not isinstance(e, dict) or not isinstance(e.get("name"), str) for e in entries
        ):
            raise KubeconfigError(f"{section} is no list of named entries")
    return config


def _load(data: bytes) -> Any:
    """Decode JSON, which services hand each other, a hundred times faster than as the YAML that it is too."""
    if data[:1] == b"{":
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            return yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def contexts(config: Mapping[str, Any]) -> list[str]:
    """Names of all contexts, in order."""
    return [entry["name"] for entry in config["contexts"]]


def _entry(config: Mapping[str, Any], section: str, name: str, key: str) -> dict[str, Any]:
    found = [entry for entry in config[section] if entry["name"] == name]
    if not found:
        raise KubeconfigError(f"{key} {name!r} is not in {section}")
    if len(found) > 1:
        raise KubeconfigError(f"{key} {name!r} is in {section} more than once")
    body = found[0].get(key) or {}
    if not isinstance(body, dict):
        raise KubeconfigError(f"{key} {name!r} is no mapping")
    return dict(body)


def read_file(path: Path, what: str) -> bytes:
    """Return the file's bytes; KubeconfigError with the reason where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"{what} {path}: {error.strerror}") from None


def _inline_files(body: dict[str, Any], base: Path | None) -> None:
    """Put the contents of named files into `body`; data that is there already wins, as in kubectl."""
    for key, data_key in FILE_KEYS.items():
        name = body.pop(key, None)
        if body.get(data_key) or not name:
            continue
        path = Path(str(name)).expanduser()
        if not path.is_absolute() and base is None:
            raise KubeconfigError(f"{key} {name}: a relative file without a folder to find it in")
        body[data_key] = base64.b64encode(read_file((base or Path()) / path, key)).decode()


def check_data(body: Mapping[str, Any]) -> None:
    """KubeconfigError where embedded data is no base64 of PEM."""
    for key in FILE_KEYS.values():
        if not (value := body.get(key)):
            continue
        try:
            decoded = base64.b64decode(str(value), validate=True)
        except (binascii.Error, ValueError):
            raise KubeconfigError(f"{key} is no base64") from None
        if b"-----BEGIN" not in decoded:
            raise KubeconfigError(f"{key} holds no PEM")


def single(
    config: Mapping[str, Any],
    context: str | None = None,
    *,
    base: Path | None = None,
    inline_token: bool = False,
) -> dict[str, Any]:
    """Return a kubeconfig of one context (by default the current or only one) with its files inlined.

    `base` is the folder that relative files are found in. A `tokenFile` stays a file, since it rotates,
    unless `inline_token` asks for its present content.
    """
    names = contexts(config)
    chosen = context or config.get("current-context") or (names[0] if len(names) == 1 else "")
    if not chosen:
        raise KubeconfigError("has no current-context" if names else "has no contexts")
    entry = _entry(config, "contexts", chosen, "context")
    if not entry.get("cluster"):
        raise KubeconfigError(f"context {chosen!r} names no cluster")
    cluster = _entry(config, "clusters", str(entry["cluster"]), "cluster")
    user = _entry(config, "users", str(entry["user"]), "user") if entry.get("user") else {}
    server = cluster.get("server")
    if not isinstance(server, str) or not valid_server(server):
        raise KubeconfigError(f"cluster {entry['cluster']!r}: server {server!r} is no http(s) URL")
    for body in (cluster, user):
        _inline_files(body, base)
        check_data(body)
    _token_file(user, base, inline_token)
    plugin = user.get("exec")
    if isinstance(plugin, dict) and base is not None and "/" in str(plugin.get("command", "")):
        user["exec"] = {**plugin, "command": str(base / str(plugin["command"]))}
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": chosen,
        "clusters": [{"name": chosen, "cluster": cluster}],
        "users": [{"name": chosen, "user": user}],
        "contexts": [{"name": chosen, "context": {"cluster": chosen, "user": chosen}}],
    }  # fmt: skip


def _token_file(user: dict[str, Any], base: Path | None, inline: bool) -> None:
    name = user.get("tokenFile")
    if not name:
        return
    path = (base or Path()) / Path(str(name)).expanduser()
    user["tokenFile"] = str(path)
    if inline:
        del user["tokenFile"]
        user["token"] = read_file(path, "tokenFile").decode("utf-8", "replace").strip()


def valid_server(server: str) -> bool:
    """Whether `server` is an http(s) URL with a host."""
    try:
        parts = urlsplit(server)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def digest(config: Mapping[str, Any]) -> str:
    """Digest of a decoded kubeconfig: the same for the same content in another order."""
    return hashlib.sha256(msgspec.json.encode(config, order="deterministic")).hexdigest()[:32]


def in_cluster() -> dict[str, Any]:
    """Kubeconfig of the service account of the pod that this runs in."""
    import os

    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (IN_CLUSTER / "token").exists():
        raise KubeconfigError("no kubeconfig is given, and this runs in no pod")
    host = f"[{host}]" if ":" in host else host
    ca = base64.b64encode(read_file(IN_CLUSTER / "ca.crt", "service account")).decode()
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "in-cluster",
        "clusters": [{"name": "in-cluster", "cluster": {
            "server": f"https://{host}:{port}", "certificate-authority-data": ca}}],
        "users": [{"name": "in-cluster", "user": {"tokenFile": str(IN_CLUSTER / "token")}}],
        "contexts": [{"name": "in-cluster", "context": {"cluster": "in-cluster", "user": "in-cluster"}}],
    }  # fmt: skip


def resolve(source: bytes | Mapping[str, Any] | Path | str) -> dict[str, Any]:
    """Turn what callers have (a path, bytes, a decoded kubeconfig) into a single-context kubeconfig.

    An empty path is the pod's own service account.
    """
    if isinstance(source, Path | str):
        if not str(source) or str(source) == ".":
            return in_cluster()
        path = Path(source).expanduser()
        try:
            return single(parse(read_file(path, "kubeconfig")), base=path.resolve().parent)
        except KubeconfigError as error:
            text = str(error)
            raise KubeconfigError(text if str(path) in text else f"kubeconfig {path} {text}") from None
    if isinstance(source, bytes | bytearray | memoryview):
        return single(parse(bytes(source)))
    return single(parse(msgspec.json.encode(source)))
