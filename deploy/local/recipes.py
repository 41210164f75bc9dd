"""What is built for the local fleet: one recipe a binary, each from a Go module of `deploy/local/kube/`.

Standard library only: the builder imports it on a bare Python.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from deploy.local.changes import change_files
from deploy.local.paths import KUBERNETES_VERSION, RECIPES_DIR

_VERSION_PACKAGE = "k8s.io/component-base/version"


def kubernetes_ldflags(version: str = KUBERNETES_VERSION) -> str:
    """Flags that have the programs say which version they are."""
    major, minor, _ = version.removeprefix("v").split(".", 2)
    stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s -w", *(f"-X {_VERSION_PACKAGE}.{name}={value}" for name, value in stamps.items())])


@dataclass(frozen=True)
class Recipe:
    """How one binary is made: its Go module (a directory of `kube/`), its main package, its linker flags."""

    binary: str
    module: str
    package: str
    ldflags: str = "-s -w"
    changed: str = ""  # the Go module that the recipe's `_changes` directory changes

    @property
    def changes(self) -> Path:
        return self.directory / "_changes"

    @property
    def directory(self) -> Path:
        return RECIPES_DIR / self.module

    def digest(self) -> str:
        """Names everything that goes into the binary, so that a changed recipe rebuilds it."""
        parts = [self.package.encode(), self.ldflags.encode()]
        parts += [(self.directory / name).read_bytes() for name in ("go.mod", "go.sum")]
        parts += [path.read_bytes() for path in change_files(self.changes)] if self.changed else []
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


RECIPES = (
    # etcd first: it is quick, and what needs only etcd can begin.
    Recipe("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    *(
        Recipe(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", kubernetes_ldflags())
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    ),
    Recipe("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", changed="sigs.k8s.io/kwok"),
)
