"""Provider `kubeconfig-secret`: labelled Secrets of a cluster, each with a kubeconfig.

The label and the key are those of multicluster-runtime's provider, so that Secrets made for it work unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import SECRETS
from services.discovery.config import SecretProvider
from services.discovery.names import Candidate, ObjectCandidate
from services.discovery.providers.objects import Access, Key, ObjectProvider, has_key, reread


class SecretProviderTask(ObjectProvider):
    """`id`, `run`: see base.Provider. A Secret that is gone, or without label or key, is a cluster that left."""

    def __init__(
        self, ident: str, settings: SecretProvider, host: KubeClient | None,
        holders: Callable[[], Mapping[str, str]],
    ) -> None:  # fmt: skip
        super().__init__(ident, settings.kubeconfig, host, holders)
        self.where = f"Secrets with label {settings.label}=true"
        self._settings = settings
        self._known: dict[Key, Access] = {}

    async def watches(self, client: KubeClient) -> Sequence[Informer]:
        """Follow the labelled Secrets."""
        settings = self._settings
        return [Informer(
            client, SECRETS, namespace=settings.namespace or None,
            label_selector=f"{settings.label}=true", handler=self.changed,
        )]  # fmt: skip

    async def read(self, client: KubeClient) -> Mapping[Candidate, Access]:
        """Decode those that changed; in a thread, since loading certificates takes its time."""
        store = dict(self._informers[0].store)
        self._known = await asyncio.to_thread(self._decode, store)
        return {
            ObjectCandidate(namespace, name, "Secret", self._settings.key): access
            for (namespace, name), access in self._known.items()
        }

    def _decode(self, store: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Access]:
        key = self._settings.key
        return {
            name: reread(self._known.get(name), secret, key)
            for name, secret in sorted(store.items())
            if has_key(secret, key)
        }
