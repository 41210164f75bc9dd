"""Kubeconfig files of the local fleet: self-contained (certificates inline), one context each."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.local.pki import KeyPair, write_private


@dataclass(frozen=True)
class Access:
    """How to reach an API server as one user: its address, its authority's certificate, the user's key pair."""

    cluster: str
    server: str
    authority: Path
    user: str
    identity: KeyPair

    def document(self) -> dict[str, object]:
        """The kubeconfig; its context is named after the cluster."""
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        identity = {
            "client-certificate-data": self.identity.cert_base64(),
            "client-key-data": self.identity.key_base64(),
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": self.cluster,
            "clusters": [
                {
                    "name": self.cluster,
                    "cluster": {"server": self.server, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": self.user, "user": identity}],
            "contexts": [{"name": self.cluster, "context": {"cluster": self.cluster, "user": self.user}}],
        }

    def write(self, path: Path) -> Path:
        return write_private(path, yaml.safe_dump(self.document(), sort_keys=False))
