"""Simulated clusters in the foreground: `python -m deploy.local.sim --members 1000 --dir D [--port P] [--plain]`.

Writes `D/clusters/<name>.kubeconfig` for each. `--plain`: HTTP without TLS, for which everybody is an administrator.
Faults over HTTP: see `deploy.local.sim.admin`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from deploy.local.foreground import printer, run
from deploy.local.pki import write_private
from deploy.local.sim.access import Credentials
from deploy.local.sim.server import Server
from deploy.local.sim.world import World


def names(text: str) -> list[str]:
    """`3` -> m0, m1, m2; else names separated by commas."""
    if text.isdigit():
        return [f"m{number}" for number in range(int(text))]
    return [name for name in text.split(",") if name]


def _plain_kubeconfig(name: str, url: str) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": "anybody", "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "anybody"}}],
    }
    return yaml.safe_dump(document, sort_keys=False)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when a signal ended it."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.sim", description=__doc__)
    parser.add_argument("--members", default="2", help="how many, or names separated by commas")
    parser.add_argument("--nodes", type=int, default=2, help="nodes of each")
    parser.add_argument("--dir", type=Path, required=True, help="where kubeconfigs and certificates go")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="HTTP without TLS and without users")
    parser.add_argument(
        "--existing-pki", action="store_true", help="take the certificates in D/pki as they are"
    )
    arguments = parser.parse_args(argv)
    say = printer("sim")

    async def job(stop: Callable[[], None]) -> None:
        began = time.monotonic()
        directory: Path = arguments.dir.resolve()
        credentials = (
            None if arguments.plain else Credentials(directory / "pki", existing=arguments.existing_pki)
        )
        world = World(arguments.seed, time.time)
        world.authority = credentials.authority_pem if credentials else ""
        server = Server(
            world,
            tls=credentials.tls() if credentials else None,
            anonymous=credentials is None,
            home=directory / "rootfs",
        )
        async with server.serving(arguments.port):
            for name in names(arguments.members):
                world.add(name, nodes=arguments.nodes)
                path = directory / "clusters" / f"{name}.kubeconfig"
                if credentials is None:
                    write_private(path, _plain_kubeconfig(name, server.url_of(name)))
                else:
                    credentials.access(name, server.url_of(name), "admin").write(path)
            say(f"{len(world.clusters)} clusters at {server.url} ({time.monotonic() - began:.1f} s)")
            say(f"kubeconfigs: {directory / 'clusters'}; Ctrl-C stops")
            await asyncio.Event().wait()

    return run(job, say)


if __name__ == "__main__":
    sys.exit(main())
