"""A fleet in the foreground until Ctrl-C or SIGTERM: `python -m deploy.local.up --dir D --members east,west`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

from deploy.local.control import Control
from deploy.local.engines import KUBE, SIM
from deploy.local.fleet import Fleet
from deploy.local.foreground import printer, run


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when a signal ended it, 1 when it could not start."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.up", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where the fleet keeps its files")
    parser.add_argument("--members", default="east,west", help="names, comma-separated")
    parser.add_argument("--aggregators", type=int, default=1, help="how many over one etcd, each with a front")
    parser.add_argument("--no-services", action="store_true", help="clusters only, without Reclock")
    parser.add_argument(
        "--provider", action="append", default=[], type=json.loads, metavar="JSON",
        help="of discovery, instead of the one that finds the members: '{\"type\": \"kind\"}'",
    )  # fmt: skip
    parser.add_argument("--no-placement", action="store_true", help="neither scheduler nor sinker: enough for controllers")
    parser.add_argument("--etcd-members", type=int, default=1, help="members of Reclock's etcd")
    parser.add_argument("--faults", action="store_true", help="links that `ctl link` can cut, slow down, hang")
    parser.add_argument("--engine", choices=(KUBE, SIM), default=KUBE, help="real or simulated clusters")
    arguments = parser.parse_args(argv)
    members = [name for name in arguments.members.split(",") if name]
    say = printer("fleet")

    async def job(stop: Callable[[], None]) -> None:
        async with (
            Fleet.start(
                arguments.dir,
                members=members,
                engine=arguments.engine,
                services=not arguments.no_services,
                keep_alive=True,
                ticks=True,
                aggregators=max(arguments.aggregators, 1),
                say=say,
                providers=arguments.provider,
                placement=not arguments.no_placement,
                sinker=not arguments.no_placement,
                etcd_members=arguments.etcd_members,
                faults=arguments.faults,
            ) as fleet,
            Control(fleet, stop).serving(),
        ):
            for name in fleet.clusters:
                say(f"{name}: {fleet.layout.cluster_kubeconfig(name)}")
            if fleet.services is not None:
                for front in fleet.describe()["fronts"].values():
                    say(f"front: {front['kubeconfig']}")
            say(f"processes: {fleet.layout.fleet_json}; logs: {fleet.layout.logs}")
            say("ready; Ctrl-C stops everything and removes its files")
            await asyncio.Event().wait()

    return run(job, say)


if __name__ == "__main__":
    sys.exit(main())
