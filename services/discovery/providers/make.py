"""Makes the provider that a part of the configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.common.config import ConfigError
from services.common.kube.client import KubeClient
from services.discovery.config import (
    ClusterApiProvider,
    FileProvider,
    InventoryProvider,
    KcpProvider,
    KindProvider,
    NamespaceProvider,
    RemoteProvider,
    SecretProvider,
    Settings,
    StaticProvider,
)
from services.discovery.providers.base import Provider
from services.discovery.providers.capi import ClusterApiTask
from services.discovery.providers.files import FileProviderTask
from services.discovery.providers.inventory import InventoryTask
from services.discovery.providers.kcp import KcpTask
from services.discovery.providers.kind import KindProviderTask
from services.discovery.providers.namespaces import NamespaceProviderTask
from services.discovery.providers.remote import RemoteProviderTask
from services.discovery.providers.secrets import SecretProviderTask
from services.discovery.providers.static import StaticProviderTask

OfObjects = SecretProvider | ClusterApiProvider | NamespaceProvider | KcpProvider | InventoryProvider


def make(
    ident: str, settings: Settings, host: KubeClient | None, holders: Callable[[], Mapping[str, str]]
) -> Provider:
    """Return a provider that does not run yet; ConfigError where it needs a host and there is none."""
    if isinstance(settings, FileProvider):
        return FileProviderTask(ident, settings.paths, holders)
    if isinstance(settings, KindProvider):
        return KindProviderTask(ident, settings, holders)
    if isinstance(settings, RemoteProvider):
        return RemoteProviderTask(ident, settings)
    if isinstance(settings, StaticProvider):
        return StaticProviderTask(ident, settings.clusters)
    if not settings.kubeconfig and host is None:
        raise ConfigError(f"provider {ident}: kubeconfig is needed, since there is no host (host.kubeconfig)")
    return _of_objects(ident, settings, host, holders)


def _of_objects(
    ident: str, settings: OfObjects, host: KubeClient | None, holders: Callable[[], Mapping[str, str]]
) -> Provider:
    if isinstance(settings, SecretProvider):
        return SecretProviderTask(ident, settings, host, holders)
    if isinstance(settings, ClusterApiProvider):
        return ClusterApiTask(ident, settings, host, holders)
    if isinstance(settings, NamespaceProvider):
        return NamespaceProviderTask(ident, settings, host, holders)
    if isinstance(settings, KcpProvider):
        return KcpTask(ident, settings, host, holders)
    return InventoryTask(ident, settings, host, holders)
