"""Provider `namespace`: each namespace of a cluster is shown as a cluster of its own.

The access to each carries the namespace (see services.common.kube.shape), and clients keep to it. Objects keep the
name of their namespace: so those of several such clusters never clash where the fleet's are shown in one list.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import NAMESPACES
from services.common.kube.shape import Shape, shaped
from services.discovery.config import NamespaceProvider
from services.discovery.names import Candidate, NamedCandidate
from services.discovery.providers.objects import Access, ObjectProvider
from services.discovery.providers.own import REREAD, OwnAccess

log = logging.getLogger(__name__)

LABEL = "reclock.dev/namespace"
"""Label of such a cluster: its namespace."""


class NamespaceProviderTask(ObjectProvider):
    """`id`, `run`: see base.Provider. A namespace that is gone, or no longer matches, is a cluster that left."""

    where = "Namespaces"
    reread = REREAD

    def __init__(
        self, ident: str, settings: NamespaceProvider, host: KubeClient | None,
        holders: Callable[[], Mapping[str, str]],
    ) -> None:  # fmt: skip
        super().__init__(ident, settings.kubeconfig, host, holders)
        self._selector = settings.label_selector
        self._own = OwnAccess()
        self._whole = ""
        """Uid of the whole cluster."""

    async def watches(self, client: KubeClient) -> Sequence[Informer]:
        """Follow the namespaces' metadata."""
        return [Informer(
            client, NAMESPACES, label_selector=self._selector, metadata_only=True, handler=self.namespace_changed
        )]  # fmt: skip

    def namespace_changed(self, kind: str, obj: dict[str, object], old: dict[str, object] | None) -> None:
        """Only whether it exists counts."""
        if kind != "MODIFIED":
            self.changed(kind, obj, old)

    async def read(self, client: KubeClient) -> Mapping[Candidate, Access]:
        """One cluster per namespace, all with the same credentials."""
        await self._own.read(client.source or Path())
        if not self._whole:
            await self._look_whole(client)
        return {
            NamedCandidate("Namespace", name): self._access(name, str(obj["metadata"].get("uid", "")))
            for (_, name), obj in sorted(self._informers[0].store.items())
        }

    async def _look_whole(self, client: KubeClient) -> None:
        """Ask which cluster these are parts of: it is not to be a member beside them."""
        try:
            self._whole = str((await client.get(NAMESPACES, None, "kube-system"))["metadata"]["uid"])
        except StatusError as error:
            log.info("%s: which cluster the namespaces are parts of is not known: %s", self.id, error.message)

    def _access(self, name: str, uid: str) -> Access:
        own, shape = self._own, Shape(namespace=name, of=self._whole)
        kubeconfig = shaped(own.kubeconfig, shape) if own.kubeconfig is not None else None
        return Access(uid, "", kubeconfig, own.problem, {LABEL: name})
