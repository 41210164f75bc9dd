"""The command lines of a Kubernetes control plane's programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local.pki import KeyPair

LOOPBACK = "127.0.0.1"

#: What must not run on the host: everything that makes, places, counts or binds pods there. They live in members.
HOST_WITHOUT = (
    "daemonset-controller",
    "deployment-controller",  # runs against the front, where ReplicaSets have their pods
    "disruption-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
    "ephemeral-volume-controller",
    "horizontal-pod-autoscaler-controller",
    "job-controller",
    "node-ipam-controller",
    "node-lifecycle-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-expander-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "replicationcontroller-controller",
    "resourceclaim-controller",
    "resourcequota-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-controller",
)
HOST_CONTROLLERS = ("*", *(f"-{name}" for name in HOST_WITHOUT))
FRONT_CONTROLLERS = ("deployment-controller",)


def etcd(
    binary: Path, data: Path, port: int, peer_port: int, *, fsync: bool, name: str = "default",
    peers: Mapping[str, int] | None = None, compacts: bool = True, old: bool = False,
) -> list[str]:  # fmt: skip
    """One etcd on loopback, plain HTTP. `fsync=False` survives kill -9 (the page cache lives on), not a power cut.

    `peers`: peer port of every member of its cluster, by name, itself included; alone when it is not given.
    `compacts`: by itself, to the last five minutes; the clock's etcd is compacted by the clock.
    `old`: an etcd before 3.6, which calls some flags experimental.
    """
    client, peer = f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{peer_port}"
    whole = ",".join(f"{one}=http://{LOOPBACK}:{at}" for one, at in (peers or {name: peer_port}).items())
    command = [
        str(binary),
        f"--name={name}",
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={whole}",
        "--log-level=warn",
        f"--auto-compaction-retention={'5m' if compacts else '0'}",
        "--quota-backend-bytes=4294967296",
        f"--{'experimental-' if old else ''}watch-progress-notify-interval=5s",
    ]
    return command if fsync else [*command, "--unsafe-no-fsync"]


def apiserver(
    binary: Path,
    *,
    port: int,
    etcd_port: int,
    service_range: str,
    authentication_config: Path,
    authority: KeyPair,
    server: KeyPair,
    kubelet_client: KeyPair,
    service_accounts: KeyPair,
    proxy_authority: KeyPair,
    proxy_client: KeyPair,
) -> list[str]:
    return [
        str(binary),
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--etcd-servers=http://{LOOPBACK}:{etcd_port}",
        f"--authentication-config={authentication_config}",
        "--authorization-mode=RBAC",
        f"--client-ca-file={authority.cert}",
        f"--tls-cert-file={server.cert}",
        f"--tls-private-key-file={server.key}",
        f"--kubelet-client-certificate={kubelet_client.cert}",
        f"--kubelet-client-key={kubelet_client.key}",
        f"--kubelet-certificate-authority={authority.cert}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={service_accounts.cert}",
        f"--service-account-signing-key-file={service_accounts.key}",
        f"--requestheader-client-ca-file={proxy_authority.cert}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={proxy_client.cert}",
        f"--proxy-client-key-file={proxy_client.key}",
        f"--service-cluster-ip-range={service_range}",
        # The `kubernetes` service's endpoint would be a loopback address, which validation refuses.
        "--endpoint-reconciler-type=none",
        "--enable-admission-plugins=NamespaceLifecycle,LimitRanger,ServiceAccount,ResourceQuota",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def controller_manager(
    binary: Path,
    *,
    port: int,
    kubeconfig: Path,
    controllers: Sequence[str],
    authority: KeyPair,
    server: KeyPair,
    service_accounts: KeyPair,
) -> list[str]:
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--controllers={','.join(controllers)}",
        f"--service-account-private-key-file={service_accounts.key}",
        f"--root-ca-file={authority.cert}",
        f"--cluster-signing-cert-file={authority.cert}",
        f"--cluster-signing-key-file={authority.key}",
        *_serving(port, server),
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--profiling=false",
    ]


def scheduler(binary: Path, *, port: int, kubeconfig: Path, server: KeyPair) -> list[str]:
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        *_serving(port, server),
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--profiling=false",
    ]


def kwok(binary: Path, *, port: int, kubeconfig: Path, configs: Sequence[Path], server: KeyPair) -> list[str]:
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        *(f"--config={path}" for path in configs),
        "--manage-all-nodes=true",
        f"--node-ip={LOOPBACK}",
        f"--node-port={port}",
        f"--server-address={LOOPBACK}:{port}",
        f"--tls-cert-file={server.cert}",
        f"--tls-private-key-file={server.key}",
        "--node-lease-duration-seconds=40",
    ]


def _serving(port: int, server: KeyPair) -> list[str]:
    return [
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--tls-cert-file={server.cert}",
        f"--tls-private-key-file={server.key}",
    ]
