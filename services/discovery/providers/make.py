"""Makes the provider that a part of the configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.common.config import ConfigError
from services.common.kube.client import KubeClient
from services.discovery.config import (
    ClusterApiProvider,
    FileProvider,
    KindProvider,
    RemoteProvider,
    SecretProvider,
    Settings,
)
from services.discovery.providers.base import Provider
from services.discovery.providers.capi import ClusterApiTask
from services.discovery.providers.files import FileProviderTask
from services.discovery.providers.kind import KindProviderTask
from services.discovery.providers.remote import RemoteProviderTask
from services.discovery.providers.secrets import SecretProviderTask
from services.discovery.providers.static import StaticProviderTask


def make(
    ident: str, settings: Settings, host: KubeClient | None, holders: Callable[[], Mapping[str, str]]
) -> Provider:
    """Return a provider that does not run yet; ConfigError where it needs a host and there is none."""
    if isinstance(settings, FileProvider):
        return FileProviderTask(ident, settings.paths, holders)
    if isinstance(settings, SecretProvider):
        _needs_cluster(ident, settings.kubeconfig, host)
        return SecretProviderTask(ident, settings, host, holders)
    if isinstance(settings, ClusterApiProvider):
        _needs_cluster(ident, settings.kubeconfig, host)
        return ClusterApiTask(ident, settings, host, holders)
    if isinstance(settings, KindProvider):
        return KindProviderTask(ident, settings, holders)
    if isinstance(settings, RemoteProvider):
        return RemoteProviderTask(ident, settings)
    return StaticProviderTask(ident, settings.clusters)


def _needs_cluster(ident: str, kubeconfig: str, host: KubeClient | None) -> None:
    if not kubeconfig and host is None:
        raise ConfigError(f"provider {ident}: kubeconfig is needed, since there is no host (host.kubeconfig)")
