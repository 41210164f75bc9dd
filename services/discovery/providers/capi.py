"""Provider `cluster-api`: each Cluster of cluster.x-k8s.io together with its kubeconfig Secret.

Of Secrets only metadata is followed, and `<name>-kubeconfig` of a known Cluster is read when it changed: so a
Secret made by hand, without Cluster API's labels, counts too, and no other Secret's content comes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import SECRETS, Resource
from services.discovery.config import ClusterApiProvider
from services.discovery.names import Candidate, ObjectCandidate
from services.discovery.providers.objects import (
    Access,
    Key,
    ObjectProvider,
    has_key,
    preferred_version,
    reread,
)  # fmt: skip

GROUP = "cluster.x-k8s.io"
SUFFIX = "-kubeconfig"
KEY = "value"
PARALLEL = 16


class ClusterApiTask(ObjectProvider):
    """`id`, `run`: see base.Provider. A Cluster without its Secret is none yet, or none any more."""

    where = f"Clusters of {GROUP}"

    def __init__(
        self, ident: str, settings: ClusterApiProvider, host: KubeClient | None,
        holders: Callable[[], Mapping[str, str]],
    ) -> None:  # fmt: skip
        super().__init__(ident, settings.kubeconfig, host, holders)
        self._namespace = settings.namespace or None
        self._known: dict[Key, Access] = {}

    async def watches(self, client: KubeClient) -> Sequence[Informer]:
        """Follow Clusters, in the version that the management cluster prefers, and the metadata of Secrets."""
        clusters = Resource(GROUP, await preferred_version(client, GROUP, "Cluster API"), "clusters", "Cluster")
        return [
            Informer(client, clusters, namespace=self._namespace, metadata_only=True, handler=self.cluster_changed),
            Informer(client, SECRETS, namespace=self._namespace, metadata_only=True, handler=self.secret_changed),
        ]

    def cluster_changed(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        """Only whether it exists counts: its status changes often."""
        if kind != "MODIFIED":
            self.changed(kind, obj, old)

    def secret_changed(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        """Secrets of other things are passed over."""
        name = str(obj["metadata"]["name"])
        if name.endswith(SUFFIX):
            self.changed(kind, obj, old)

    async def read(self, client: KubeClient) -> Mapping[Candidate, Access]:
        """Fetch the Secrets that changed."""
        clusters, secrets = (informer.store for informer in self._informers)
        wanted = {
            key: secret["metadata"] for key in sorted(clusters)
            if (secret := secrets.get((key[0], f"{key[1]}{SUFFIX}"))) is not None
        }  # fmt: skip
        limit = asyncio.Semaphore(PARALLEL)

        async def fetch(key: Key) -> Access | None:
            async with limit:
                return await self._fetch(client, key, wanted[key])

        got = await asyncio.gather(*(fetch(key) for key in wanted))
        self._known = {key: access for key, access in zip(wanted, got, strict=True) if access is not None}
        return {
            ObjectCandidate(namespace, name, "Cluster", f"{name}{SUFFIX}", qualified=True): access
            for (namespace, name), access in self._known.items()
        }

    async def _fetch(self, client: KubeClient, key: Key, metadata: Mapping[str, Any]) -> Access | None:
        """Read one Secret; None where it, or its key, is gone."""
        before = self._known.get(key)
        uid, version = str(metadata.get("uid", "")), str(metadata.get("resourceVersion", ""))
        if before is not None and (before.uid, before.version) == (uid, version):
            return before
        try:
            secret = await client.get(SECRETS, key[0], f"{key[1]}{SUFFIX}")
        except StatusError as error:
            if error.code == 404:
                return None
            self._retry = True
            kept = before.kubeconfig if before is not None else None
            # Without a version, so that it is read again.
            return Access(uid, "", kept, f"cannot be read: {error.message}")
        return await asyncio.to_thread(reread, before, secret, KEY) if has_key(secret, KEY) else None
