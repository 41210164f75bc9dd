"""`reclock kubeconfig [CLUSTER]`: a kubeconfig for the whole fleet, or for one member through the front."""

from __future__ import annotations

import yaml

from reclock.cli.access import KubeconfigError, current, kubeconfig_path
from reclock.cli.api import GROUP, Api, CliError


async def require_cluster(api: Api, name: str) -> None:
    """CliError unless the fleet has the cluster."""
    names = [item["metadata"]["name"] for item in await api.items(f"{GROUP}/clusters")]
    if name not in names:
        raise CliError(f"the fleet has no cluster {name!r}; it has: {', '.join(names) or 'none'}")


def text(given: str | None, cluster: str | None) -> str:
    """The kubeconfig as YAML, only with its current context; for a member, through `/clusters/<name>`."""
    path = kubeconfig_path(given)
    try:
        now = current(path)
    except KubeconfigError as error:
        raise CliError(f"kubeconfig {path} cannot be used: {error}") from error
    name = cluster or "reclock"
    inner = dict(now.cluster)
    if cluster:
        inner["server"] = f"{inner['server'].rstrip('/')}/clusters/{cluster}"
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": inner}],
        "users": [{"name": name, "user": now.user}],
        "contexts": [{"name": name, "context": {**now.context, "cluster": name, "user": name}}],
        "current-context": name,
    }
    return yaml.safe_dump(made, sort_keys=False)
