"""Provider `cluster-inventory`: ClusterProfiles (KEP-4322) whose credentials exec plugins make (KEP-5339).

A ClusterProfile says where the cluster is, once per kind of credentials that it takes; the plugin for each kind is
configured here. Nothing secret is in either: the plugin runs beside each service that calls the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.common.kube import kubeconfig as kc
from services.common.kube.client import KubeClient
from services.common.kube.credentials import EXEC_EXTENSION, Credentials
from services.common.kube.informer import Informer
from services.common.kube.resource import Resource
from services.discovery.config import AccessProvider, InventoryProvider
from services.discovery.names import Candidate, ObjectCandidate, is_label
from services.discovery.providers.objects import Access, Key, ObjectProvider, preferred_version

GROUP = "multicluster.x-k8s.io"
CLUSTER_KEYS = (
    "server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url",
    "disable-compression",
)  # fmt: skip
"""What is taken of a profile's cluster: no files, since they would be read here."""


class InventoryTask(ObjectProvider):
    """`id`, `run`: see base.Provider. A profile without any access provider is no cluster yet, or none any more."""

    where = f"ClusterProfiles of {GROUP}"

    def __init__(
        self, ident: str, settings: InventoryProvider, host: KubeClient | None,
        holders: Callable[[], Mapping[str, str]],
    ) -> None:  # fmt: skip
        super().__init__(ident, settings.kubeconfig, host, holders)
        self._namespace = settings.namespace or None
        self._providers = settings.access_providers
        self._known: dict[Key, Access] = {}

    async def watches(self, client: KubeClient) -> Sequence[Informer]:
        """Follow the profiles, in the version that their cluster prefers."""
        version = await preferred_version(client, GROUP, "the cluster inventory API")
        resource = Resource(GROUP, version, "clusterprofiles", "ClusterProfile")
        return [Informer(client, resource, namespace=self._namespace, handler=self.profile_changed)]

    def profile_changed(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        """Conditions and properties change often; access and labels count."""
        if kind != "MODIFIED" or old is None or _relevant(obj) != _relevant(old):
            self.changed(kind, obj, old)

    async def read(self, client: KubeClient) -> Mapping[Candidate, Access]:
        """Make a kubeconfig of each profile."""
        profiles = sorted(self._informers[0].store.items())
        self._known = {
            key: access_to(profile, self._providers, self._known.get(key))
            for key, profile in profiles if offers(profile)
        }  # fmt: skip
        return {
            ObjectCandidate(namespace, name, "ClusterProfile", "accessProviders", qualified=True): access
            for (namespace, name), access in self._known.items()
        }


def offers(profile: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name of access provider -> cluster entry. Older controllers write `credentialProviders`, in list or map form."""
    status = profile.get("status") or {}
    given = status.get("accessProviders") or status.get("credentialProviders") or []
    if isinstance(given, dict):
        given = [{"name": name, **one} for name, one in given.items() if isinstance(one, dict)]
    entries = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
    return {str(one.get("name")): cluster if isinstance(cluster := one.get("cluster"), dict) else {} for one in entries}


def access_to(profile: Mapping[str, Any], providers: Sequence[AccessProvider], before: Access | None) -> Access:
    """Make the access; what is bad leaves the last good one of the same profile."""
    uid = str(profile["metadata"].get("uid", ""))
    kept = before.kubeconfig if before is not None and before.uid == uid else None
    labels = {key: value for key, value in (profile["metadata"].get("labels") or {}).items() if is_label(key, value)}
    offered = offers(profile)
    chosen = next((one for one in providers if one.name in offered), None)
    if chosen is None:
        problem = f"none of its access providers is configured here: {', '.join(sorted(offered))}"
        return Access(uid, "", kept, problem, labels)
    try:
        return Access(uid, "", _kubeconfig(offered[chosen.name], chosen), "", labels)
    except kc.KubeconfigError as error:
        return Access(uid, "", kept, f"access provider {chosen.name!r}: {error}", labels)


def _kubeconfig(cluster: Mapping[str, Any], provider: AccessProvider) -> dict[str, Any]:
    if cluster.get("certificate-authority"):
        raise kc.KubeconfigError("certificate-authority is not allowed here; embed the data")
    entry = {key: cluster[key] for key in CLUSTER_KEYS if cluster.get(key)}
    extensions = [
        one for one in cluster.get("extensions") or [] if isinstance(one, dict) and one.get("name") == EXEC_EXTENSION
    ]
    if extensions:
        entry["extensions"] = extensions
    plugin = provider.exec
    exec_config = {
        "apiVersion": plugin.api_version, "command": plugin.command, "args": plugin.args,
        "env": [{"name": key, "value": value} for key, value in sorted(plugin.env.items())],
        "provideClusterInfo": True, "interactiveMode": "Never",
    }  # fmt: skip
    name = provider.name
    kubeconfig = kc.single({
        "current-context": name, "clusters": [{"name": name, "cluster": entry}],
        "users": [{"name": name, "user": {"exec": exec_config}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    })  # fmt: skip
    Credentials(kubeconfig)
    return kubeconfig


def _relevant(profile: Mapping[str, Any]) -> Any:
    return offers(profile), profile["metadata"].get("labels")
