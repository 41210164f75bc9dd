"""Certificates and kubeconfigs of simulated clusters: one authority, one serving certificate, one user per file."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from deploy.local.kubeconfig import Access
from deploy.local.pki import Authority, KeyPair

ADMINISTRATORS = ("system:masters",)


class Credentials:
    """The authority of a sim and what it issued, in `directory`. All clusters share it: members differ by their URL.

    `existing`: another process made them there; then there is no `authority` here, and nothing can be issued.
    """

    def __init__(self, directory: Path, *, existing: bool = False) -> None:
        names = ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"]
        if existing:
            self._certificate = directory / "ca.crt"
            self._server = KeyPair(directory / "server.crt", directory / "server.key")
        else:
            self.authority = Authority(directory, "ca")
            self._certificate = self.authority.pair.cert
            self._server = self.authority.server("server", names)
        self._clients: dict[tuple[str, tuple[str, ...]], KeyPair] = {}

    def tls(self) -> ssl.SSLContext:
        """The server's context: asks clients for a certificate of the authority, takes those without one too."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self._certificate))
        context.load_cert_chain(self._server.cert, self._server.key)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    @property
    def authority_pem(self) -> str:
        return self._certificate.read_text()

    def client(self, user: str, groups: Sequence[str] = ADMINISTRATORS) -> KeyPair:
        """The user's certificate; made once, for making one takes longer than a cluster."""
        key = (user, tuple(groups))
        if key not in self._clients:
            self._clients[key] = self.authority.client(user, groups)
        return self._clients[key]

    def access(self, cluster: str, url: str, user: str, groups: Sequence[str] = ADMINISTRATORS) -> Access:
        return Access(cluster, url, self.authority.pair.cert, user, self.client(user, groups))
