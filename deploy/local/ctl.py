"""Tells a running fleet something: `python -m deploy.local.ctl [--dir .reclock] ps|stop|start|kill9|… [NAME]`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from deploy.local.ask import FAULTS, OPS, ask
from deploy.local.errors import FleetFailed
from deploy.local.layout import Layout

SLOW = ("start", "stop", "restart", "add-member", "remove-member", "shutdown")


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when there is no such fleet or it refuses; prints the processes afterwards."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.ctl", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(".reclock"))
    parser.add_argument("op", choices=OPS)
    parser.add_argument(
        "name", nargs="?", default="", help="a process (or glob: 'east-*'), a link, a cluster, or the new member"
    )
    parser.add_argument(
        "fault", nargs="?", default="", help=f"link: {', '.join(FAULTS)}; sim: an action of docs/sim.md"
    )
    parser.add_argument("given", nargs="?", default={}, type=json.loads, help='sim: \'{"kind": "delay", "seconds": 1}\'')
    parser.add_argument("--latency", type=float, default=0.2, help="link slow: seconds each way")
    parser.add_argument("--bandwidth", type=int, default=0, help="link slow: bytes a second each way")
    arguments = parser.parse_args(argv)
    more = {"fault": arguments.fault, "latency": arguments.latency, "bandwidth": arguments.bandwidth,
            "given": arguments.given}  # fmt: skip
    if arguments.op in SLOW:
        print(f"{arguments.op} {arguments.name} …", file=sys.stderr)
    try:
        answer = ask(Layout(arguments.dir).control, arguments.op, arguments.name, **more)
    except FleetFailed as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.op in ("stop", "kill9"):
        print(f"{arguments.name} stays down until it is told to start: … start {arguments.name}", file=sys.stderr)
    for process in answer["processes"]:
        ports = " ".join(f"{kind}={port}" for kind, port in process["ports"].items())
        print(f"{process['name']:28} {process['state']:10} {process['pid'] or '-':>7}  {ports}")
    for name, link in answer["links"].items():
        print(f"{name:28} {link['fault']:10} {link['connections']:>7}  port={link['port']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
