"""Tells a running fleet something: `python -m deploy.local.ctl [--dir .reclock] ps|stop|start|kill9|… [NAME]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.local.control import OPS, ask
from deploy.local.errors import FleetFailed
from deploy.local.layout import Layout


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when there is no such fleet or it refuses; prints the processes afterwards."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.ctl", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(".reclock"))
    parser.add_argument("op", choices=OPS)
    parser.add_argument(
        "name", nargs="?", default="", help="a process (or glob: 'east-*'), or the new member"
    )
    arguments = parser.parse_args(argv)
    try:
        answer = ask(Layout(arguments.dir).control, arguments.op, arguments.name)
    except FleetFailed as error:
        print(error, file=sys.stderr)
        return 1
    for process in answer["processes"]:
        ports = " ".join(f"{kind}={port}" for kind, port in process["ports"].items())
        print(f"{process['name']:28} {process['state']:10} {process['pid'] or '-':>7}  {ports}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
