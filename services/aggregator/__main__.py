"""`python -m services.aggregator`."""

from __future__ import annotations

import sys

from services.aggregator.app import Aggregator
from services.aggregator.config import AggregatorConfig
from services.common import service


def main() -> int:
    """Run the aggregator; the exit code says how it ended."""
    return service.main(Aggregator, AggregatorConfig, "aggregator")


if __name__ == "__main__":
    sys.exit(main())
