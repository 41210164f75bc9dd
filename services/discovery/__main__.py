"""`python -m services.discovery --config FILE`."""

from __future__ import annotations

import sys

from services.common.service import main as run
from services.discovery.config import DiscoveryConfig
from services.discovery.service import DiscoveryService


def main() -> int:
    """Run discovery; returns the exit code."""
    return run(DiscoveryService, DiscoveryConfig, "discovery")


if __name__ == "__main__":
    sys.exit(main())
