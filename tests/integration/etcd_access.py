"""An etcd that asks who one is: TLS with clients' certificates, users with passwords."""

from __future__ import annotations

import subprocess
from pathlib import Path

from aetcd.rpc import auth_pb2, rpc_pb2

from deploy.local.pki import Authority, KeyPair
from services.common.etcd import Etcd, EtcdTls
from tests.integration.etcd_server import free_port


class Secured:
    """An etcd with TLS that asks clients for a certificate."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.authority = Authority(folder / "pki", "etcd-ca")
        server = self.authority.server("etcd", ["127.0.0.1", "localhost"])
        self.url = f"https://127.0.0.1:{free_port()}"
        peer = f"http://127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [
                binary, "--data-dir", str(folder / "data"), "--log-level", "error", "--unsafe-no-fsync",
                "--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--listen-peer-urls", peer,
                "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
                "--cert-file", str(server.cert), "--key-file", str(server.key), "--client-cert-auth",
                "--trusted-ca-file", str(self.authority.pair.cert),
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def tls(self, pair: KeyPair | None = None) -> EtcdTls:
        pair = pair or self.authority.client("nobody", ())
        return EtcdTls(ca=str(self.authority.pair.cert), cert=str(pair.cert), key=str(pair.key))


async def enable_users(client: Etcd) -> None:
    """Users root and reclock; reclock may do all under /reclock/, in etcd's own commands."""
    auth = client.endpoints[0].auth
    for name, password in (("root", "r"), ("reclock", "first")):
        await auth.UserAdd(rpc_pb2.AuthUserAddRequest(name=name, password=password))
    for name in ("root", "keeper"):
        await auth.RoleAdd(rpc_pb2.AuthRoleAddRequest(name=name))
    permission = auth_pb2.Permission(
        permType=auth_pb2.Permission.READWRITE, key=b"/reclock/", range_end=b"/reclock0"
    )
    await auth.RoleGrantPermission(rpc_pb2.AuthRoleGrantPermissionRequest(name="keeper", perm=permission))
    await auth.UserGrantRole(rpc_pb2.AuthUserGrantRoleRequest(user="root", role="root"))
    await auth.UserGrantRole(rpc_pb2.AuthUserGrantRoleRequest(user="reclock", role="keeper"))
    await auth.AuthEnable(rpc_pb2.AuthEnableRequest())
