"""`python -m services.reconciler --config FILE [--key value ...]`."""

from __future__ import annotations

import sys

from services.common.service import main as run
from services.reconciler.config import ReconcilerConfig
from services.reconciler.service import ReconcilerService


def main() -> int:
    """Run the reconciler; return its exit code."""
    return run(ReconcilerService, ReconcilerConfig, "reconciler")


if __name__ == "__main__":
    sys.exit(main())
