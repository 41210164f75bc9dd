"""`python -m services.scheduler --config FILE [--role worker] [--key value ...]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from services.common.service import Service
from services.common.service import main as run
from services.scheduler.config import SchedulerConfig
from services.scheduler.manager import Manager
from services.scheduler.worker import Worker


def make(config: SchedulerConfig) -> Service[SchedulerConfig]:
    """Make the service of the configured role."""
    return Worker(config) if config.role == "worker" else Manager(config)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; return the exit code."""
    return run(make, SchedulerConfig, "scheduler", argv)


if __name__ == "__main__":
    sys.exit(main())
