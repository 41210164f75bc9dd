"""`python -m services.aggregator`."""

from __future__ import annotations

import sys

from services.aggregator.app import Aggregator
from services.aggregator.config import AggregatorConfig
from services.aggregator.processes import supervise
from services.common import service
from services.common.config import load


def main() -> int:
    """Run the aggregator, or the several that `processes` asks for; the exit code says how it ended."""
    config = load(AggregatorConfig, "aggregator")
    if config.processes > 1:
        return supervise(config, sys.argv[1:])
    return service.main(Aggregator, AggregatorConfig, "aggregator")


if __name__ == "__main__":
    sys.exit(main())
