"""`make bench`: every script here in turn, one line per figure. `--short` is handed on: seconds instead of minutes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

LONG = ("bench_front",)
"""No short mode: real clusters."""


def main() -> int:
    """Run all; the exit code is 1 when a script could not run (a figure that is short is no failure)."""
    print(
        f"machine: {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        flush=True,
    )
    failed = 0
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    options = [one for one in sys.argv[1:] if one == "--short"]
    for script in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"-- {script.stem}", flush=True)
        if options and script.stem in LONG:
            continue
        failed += subprocess.run([sys.executable, str(script), *options], env=environment, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
