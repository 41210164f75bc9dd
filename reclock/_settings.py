"""Where the fleet is and who we are: arguments, else the environment, else what is usual."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_POD_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_DEMO = Path(".reclock/kubeconfig")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to reach the fleet. What is not given comes from the environment: `Settings.load`.

    A kubeconfig of the front, or `front` with `token_file` and `ca_file` (what a pod has): no credentials of any
    member are needed, nor used.
    """

    kubeconfig: str | Path | Mapping[str, Any] | None = None
    """A kubeconfig whose server is the front: a path, or what was read from one. RECLOCK_KUBECONFIG, KUBECONFIG;
    else `.reclock/kubeconfig` (the demo's), else `~/.kube/config`."""
    front: str = ""
    """The front's URL; with it no kubeconfig is read. RECLOCK_FRONT."""
    token_file: str = ""
    """A file with a bearer token, read again as it is rotated. RECLOCK_TOKEN_FILE; else the pod's own token."""
    ca_file: str = ""
    """The authority of the front's certificate. RECLOCK_CA_FILE; else the system's."""
    reconciler: str = "127.0.0.1:7404"
    """The reconciler's gRPC address; several behind one name are tried in turn. RECLOCK_RECONCILER."""
    tls_cert: str = ""
    """Client certificate for the reconciler. RECLOCK_TLS_CERT."""
    tls_key: str = ""
    """Its key. RECLOCK_TLS_KEY."""
    tls_ca: str = ""
    """Authority of the reconciler's certificate; TLS is used exactly when it is set. RECLOCK_TLS_CA."""
    user_agent: str = field(default="reclock-sdk")
    """Sent with each HTTP request."""

    @classmethod
    def load(cls, **given: Any) -> Settings:
        """What is given, filled up from the environment and from what is usual."""
        given = {name: value for name, value in given.items() if value is not None}
        settings = cls(**given)
        found: dict[str, Any] = {}
        for name in ("front", "token_file", "ca_file", "reconciler", "tls_cert", "tls_key", "tls_ca"):
            value = os.environ.get(f"RECLOCK_{name.upper()}")
            if value and name not in given:
                found[name] = value
        if "kubeconfig" in given and "front" not in given:
            found.pop("front", None)
        settings = replace(settings, **found)
        if settings.front:
            token = settings.token_file or (str(_POD_TOKEN) if _POD_TOKEN.exists() else "")
            return replace(settings, token_file=token)
        return replace(settings, kubeconfig=settings.kubeconfig or default_kubeconfig())


def default_kubeconfig() -> str:
    """$RECLOCK_KUBECONFIG, $KUBECONFIG, the demo's in this directory, or the user's."""
    for name in ("RECLOCK_KUBECONFIG", "KUBECONFIG"):
        if value := os.environ.get(name):
            return value
    return str(_DEMO if _DEMO.exists() else Path.home() / ".kube" / "config")
