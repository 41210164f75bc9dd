"""Configuration of discovery."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from services.common import callers
from services.common.config import TLS, ConfigError, UserFacingConfig, convert, is_loopback, split_address
from services.discovery.names import bad_label, bad_name, is_dns_label, is_label

SECRET_LABEL = "sigs.k8s.io/multicluster-runtime-kubeconfig"
_WORKSPACE = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(:[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_DATA_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")


class Probe(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How clusters are probed."""

    interval: float = 5.0
    """Seconds between two probes of one cluster."""
    timeout: float = 3.0
    """Seconds that one probe may take."""
    concurrency: int = 64
    """Probes at the same time, over all clusters."""

    def __post_init__(self) -> None:
        for name, value in (("interval", self.interval), ("timeout", self.timeout)):
            if not 0.1 <= value <= 3600:
                raise ValueError(f"{name} is {value}; allowed: 0.1 to 3600 seconds")
        if not 1 <= self.concurrency <= 10_000:
            raise ValueError(f"concurrency is {self.concurrency}; allowed: 1 to 10000")


class StaticCluster(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """One cluster that the configuration names."""

    name: str
    kubeconfig: str
    """Path; its current context is taken."""
    labels: dict[str, str] = {}

    def __post_init__(self) -> None:
        if problem := bad_name(self.name):
            raise ValueError(problem)
        if not self.kubeconfig:
            raise ValueError("kubeconfig; allowed: a path")
        if problem := bad_label(self.labels):
            raise ValueError(f"labels: {problem}")


class StaticProvider(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`type: static`: clusters by configuration."""

    name: str = ""
    clusters: list[StaticCluster] = []


class FileProvider(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`type: kubeconfig-file`: all contexts of files, directories and globs."""

    name: str = ""
    paths: list[str] = []

    def __post_init__(self) -> None:
        if not self.paths or not all(self.paths):
            raise ValueError("paths; allowed: at least one file, directory or glob")


class SecretProvider(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`type: kubeconfig-secret`: labelled Secrets of a cluster, each with a kubeconfig."""

    name: str = ""
    kubeconfig: str = ""
    """Path of a kubeconfig of the cluster that has the Secrets; "" is the host."""
    namespace: str = ""
    """Namespace of the Secrets; "" is all of them."""
    label: str = SECRET_LABEL
    """Label whose value must be `true`."""
    key: str = "kubeconfig"
    """Key of the Secret's data."""

    def __post_init__(self) -> None:
        _check_namespace(self.namespace)
        if not is_label(self.label):
            raise ValueError(f"label {self.label!r}; allowed: the key of a label")
        if not _DATA_KEY.fullmatch(self.key):
            raise ValueError(f"key {self.key!r}; allowed: a key of a Secret (letters, digits, -, _, .)")


class ClusterApiProvider(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`type: cluster-api`: Clusters of cluster.x-k8s.io with their `<name>-kubeconfig` Secrets."""

    name: str = ""
    kubeconfig: str = ""
    """Path of a kubeconfig of the management cluster; "" is the host."""
    namespace: str = ""
    """Namespace of the Clusters; "" is all of them."""

    def __post_init__(self) -> None:
        _check_namespace(self.namespace)


class KindProvider(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`type: kind`: the clusters that the command `kind` knows of on this machine."""

    name: str = ""
    command: str = "kind"
    """Program to run: a path, or a name to find in PATH."""
    interval: float = 2.0
    """Seconds between two looks (`kind get clusters`)."""
    refresh: float = 30.0
    """Seconds after which a cluster's kubeconfig is read again."""
    timeout: float = 20.0
    """Seconds that one run of the command may take."""

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command; allowed: a path, or a name to find in PATH")
        for name, value in (("interval", self.interval), ("refresh", self.refresh), ("timeout", self.timeout)):
            if not 0.1 <= value <= 3600:
                raise ValueError(f"{name} is {value}; allowed: 0.1 to 3600 seconds")


class RemoteProvider(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`type: remote`: a `reclock.discovery.v1.ClusterProviderService` in another process."""

    name: str = ""
    address: str = ""
    """`host:port`, or `unix:PATH`."""
    tls: TLS = msgspec.field(default_factory=TLS)
    """Mutual TLS with the provider; needed where it is not on this machine."""

    def __post_init__(self) -> None:
        if not self.address.startswith("unix:"):
            try:
                split_address(self.address)
            except ValueError:
                raise ValueError(f"address {self.address!r}; allowed: host:port, or unix:PATH") from None
        if not self.tls and not is_loopback(self.address):
            raise ValueError(f"address {self.address!r} is not on this machine: set tls.cert, tls.key and tls.ca")


class NamespaceProvider(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`type: namespace`: each namespace of a cluster is shown as a cluster of its own."""

    name: str = ""
    kubeconfig: str = ""
    """Path of a kubeconfig of the cluster; "" is the host."""
    label_selector: str = ""
    """Only namespaces that match; "" is all of them."""


class ExecPlugin(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """An exec credential plugin, as in a kubeconfig."""

    api_version: str = "client.authentication.k8s.io/v1"
    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command; allowed: a path, or a name to find in PATH")


class AccessProvider(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How credentials for clusters that name this access provider are made."""

    name: str
    exec: ExecPlugin


class InventoryProvider(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`type: cluster-inventory`: ClusterProfiles of multicluster.x-k8s.io, with plugins for their credentials."""

    name: str = ""
    kubeconfig: str = ""
    """Path of a kubeconfig of the cluster that has the ClusterProfiles; "" is the host."""
    namespace: str = ""
    """Namespace of the ClusterProfiles; "" is all of them."""
    access_providers: list[AccessProvider] = []
    """The first of these that a ClusterProfile names in its status is taken."""

    def __post_init__(self) -> None:
        _check_namespace(self.namespace)
        names = [one.name for one in self.access_providers]
        if not names or not all(names) or len(set(names)) < len(names):
            raise ValueError("accessProviders; allowed: at least one, each with a name of its own")


class KcpProvider(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """`type: kcp`: the workspaces below one, all behind one URL."""

    name: str = ""
    kubeconfig: str = ""
    """Path of a kubeconfig whose server is that URL; `/clusters/…` at its end is left out. "" is the host."""
    root: str = "root"
    """Path of the workspace whose children, and their children, are the clusters."""
    depth: int = 3
    """Levels of workspaces below the root that are shown."""

    def __post_init__(self) -> None:
        if not _WORKSPACE.fullmatch(self.root):
            raise ValueError(f"root {self.root!r}; allowed: the path of a workspace, as root:org")
        if not 1 <= self.depth <= 10:
            raise ValueError(f"depth is {self.depth}; allowed: 1 to 10")


def _check_namespace(namespace: str) -> None:
    if namespace and not is_dns_label(namespace):
        raise ValueError(f"namespace {namespace!r}; allowed: the name of a namespace, or \"\" for all")


Settings = (
    StaticProvider | FileProvider | SecretProvider | ClusterApiProvider | KindProvider | RemoteProvider
    | NamespaceProvider | InventoryProvider | KcpProvider
)

ACCESS_FOR = (callers.AGGREGATOR, callers.RECONCILER, callers.SCHEDULER)
BUILT: dict[str, type[Settings]] = {
    "cluster-api": ClusterApiProvider,
    "cluster-inventory": InventoryProvider,
    "kcp": KcpProvider,
    "kind": KindProvider,
    "kubeconfig-file": FileProvider,
    "kubeconfig-secret": SecretProvider,
    "namespace": NamespaceProvider,
    "remote": RemoteProvider,
    "static": StaticProvider,
}


class DiscoveryConfig(UserFacingConfig, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Keys of discovery."""

    grpc_address: str = "127.0.0.1:7401"
    providers: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Each `{type, name, ...}`: `kubeconfig-file` with `paths`, `static` with `clusters`, `kubeconfig-secret` with
    `kubeconfig`, `namespace`, `label` and `key`, `cluster-api` with `kubeconfig` and `namespace`, `kind`
    with `command`, `interval`, `refresh` and `timeout`, `remote` with `address` and `tls`, `namespace` with
    `kubeconfig` and `labelSelector`, `cluster-inventory` with `kubeconfig`, `namespace` and `accessProviders`,
    `kcp` with `kubeconfig`, `root` and `depth`."""
    probe: Probe = msgspec.field(default_factory=Probe)
    state_file: str = ""
    """File (mode 0600: it holds credentials) that clusters, their access and registrations are kept in, for starts
    without the host and for clusters whose source goes while discovery is away; "" keeps none."""
    access_for: list[str] = msgspec.field(default_factory=lambda: list(ACCESS_FOR))
    """Names (URI or DNS alternative name, or common name) of client certificates that members' credentials go to."""
    leave_timeout: float = 86400.0
    """Seconds after which it is said of a removed cluster that nobody has reported that its copies are gone. Then it takes
    `reclock forget` to have its credentials dropped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.leave_timeout < 0:
            raise ValueError(f"leaveTimeout is {self.leave_timeout}; allowed: 0 or more seconds")
        self.parsed_providers()

    def parsed_providers(self) -> list[tuple[str, Settings]]:
        """Return (id, provider) of each; ValueError names the key, for what is unknown or not built."""
        parsed = [_parse(number, raw) for number, raw in enumerate(self.providers)]
        result: list[tuple[str, Settings]] = []
        for number, (kind, provider) in enumerate(parsed):
            alone = sum(1 for other, _ in parsed if other == kind) == 1
            ident = kind if alone and not provider.name else f"{kind}#{provider.name}"
            if ident.endswith("#"):
                raise ValueError(f"providers[{number}].name: needed, since there are several of type {kind}")
            if ident in (known for known, _ in result):
                raise ValueError(f"providers[{number}].name: {provider.name!r} is given twice")
            result.append((ident, provider))
        return result


def _parse(number: int, raw: dict[str, Any]) -> tuple[str, Settings]:
    where = f"providers[{number}]"
    rest = dict(raw)
    kind = rest.pop("type", None)
    built = ", ".join(sorted(BUILT))
    if kind not in BUILT:
        raise ValueError(f"{where}.type: {kind!r}; allowed: {built}")
    try:
        return str(kind), convert(BUILT[kind], rest)
    except ConfigError as error:
        raise ValueError(f"{where}.{error}") from None
