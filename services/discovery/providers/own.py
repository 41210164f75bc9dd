"""Access to a cluster's parts with the credentials that the cluster itself is read with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.common.kube import kubeconfig as kc
from services.common.kube.credentials import Credentials

REREAD = 30.0
"""Seconds between looks at the file of the credentials: tokens in it are rotated."""


class OwnAccess:
    """The kubeconfig that a client was made of, as its file has it now; `problem` says why it is an old one."""

    def __init__(self) -> None:
        self.kubeconfig: Mapping[str, Any] | None = None
        self.problem = ""

    async def read(self, path: Path) -> None:
        """Read the file again (an empty path: the pod's service account); what is bad leaves what was read before."""
        try:
            self.kubeconfig = await asyncio.to_thread(_load, path)
            self.problem = ""
        except kc.KubeconfigError as error:
            self.problem = str(error)


def _load(path: Path) -> dict[str, Any]:
    """Resolve a kubeconfig, its token file's content in it: others cannot read that file."""
    kubeconfig = kc.resolve(path)
    user = kubeconfig["users"][0]["user"]
    if name := user.pop("tokenFile", None):
        user["token"] = kc.read_file(Path(name), "tokenFile").decode("utf-8", "replace").strip()
    Credentials(kubeconfig)
    return kubeconfig
