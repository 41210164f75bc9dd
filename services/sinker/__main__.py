"""`python -m services.sinker --config FILE [--key value ...]`."""

from __future__ import annotations

import sys

from services.common.service import main as run
from services.sinker.config import SinkerConfig
from services.sinker.service import SinkerService


def main() -> int:
    """Run the sinker; return its exit code."""
    return run(SinkerService, SinkerConfig, "sinker")


if __name__ == "__main__":
    sys.exit(main())
