"""`reclock kubeconfig [CLUSTER]`: a kubeconfig for the whole fleet, or for one member through the front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from reclock.cli.api import GROUP, Api, CliError, kubeconfig_path


async def require_cluster(api: Api, name: str) -> None:
    """CliError unless the fleet has the cluster."""
    names = [item["metadata"]["name"] for item in await api.items(f"{GROUP}/clusters")]
    if name not in names:
        raise CliError(f"the fleet has no cluster {name!r}; it has: {', '.join(names) or 'none'}")


def text(given: str | None, cluster: str | None) -> str:
    """The kubeconfig as YAML, only with its current context; for a member, through `/clusters/<name>`."""
    path = kubeconfig_path(given)
    try:
        loaded: dict[str, Any] = yaml.safe_load(Path(path).read_text())
        context = _named(loaded["contexts"], loaded["current-context"])["context"]
        target = _named(loaded["clusters"], context["cluster"])
        user = _named(loaded["users"], context["user"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise CliError(f"kubeconfig {path} cannot be used: {error}") from error
    name = cluster or "reclock"
    base = Path(path).absolute().parent
    inner = _absolute(target["cluster"], base, ("certificate-authority",))
    if cluster:
        inner["server"] = f"{inner['server'].rstrip('/')}/clusters/{cluster}"
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": inner}],
        "users": [{"name": name, "user": _absolute(user["user"], base, ("client-certificate", "client-key", "tokenFile"))}],
        "contexts": [{"name": name, "context": {**context, "cluster": name, "user": name}}],
        "current-context": name,
    }
    return yaml.safe_dump(made, sort_keys=False)


def _absolute(part: dict[str, Any], base: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """Files are named relative to the kubeconfig that names them, and what is printed may be put anywhere."""
    return {key: str(base / value) if key in keys and value else value for key, value in part.items()}


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise KeyError(f"no entry {name!r}")
