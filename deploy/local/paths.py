"""Where the local fleet keeps what it builds: the cache directory, the recipes, and the versions they pin.

Standard library only: the builder imports it on a bare Python.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

KUBERNETES_VERSION = "v1.34.4"
RECIPES_DIR = Path(__file__).resolve().parent / "kube"


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Everything that is kept between runs."""
    return Path(environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")) / "reclock"


def cache_dir(environ: Mapping[str, str] = os.environ, version: str = KUBERNETES_VERSION) -> Path:
    """The directory of one Kubernetes version's build: binaries in `bin/`, the builder's lock beside it."""
    return cache_root(environ) / "kube" / version


def bin_dir(environ: Mapping[str, str] = os.environ, version: str = KUBERNETES_VERSION) -> Path:
    """Where the builder puts the binaries and where the fleet looks for them last."""
    return cache_dir(environ, version) / "bin"
