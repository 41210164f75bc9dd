"""`reclock dev` and `reclock run`: for authors of controllers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from reclock.cli.api import CliError
from reclock.cli.options import Kubeconfig

controllers_app = typer.Typer()


@controllers_app.command()
def dev(
    files: Annotated[list[Path], typer.Argument(help="Python files with controllers.", show_default=False)],
    provider: Annotated[
        str, typer.Option(help="Where clusters come from: demo, kind, kubeconfig-file, cluster-api, remote, …")
    ] = "demo",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the provider, key=value; docs/providers.md.")
    ] = None,
    members: Annotated[str, typer.Option(help="Clusters to start for the provider demo.")] = "east,west",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the fleet's own lines too.")] = False,
) -> None:
    """Start what a controller needs on this machine, run it, and run it anew when its file is saved."""
    from reclock.cli import dev as dev_command

    _exit(lambda: dev_command.dev(files, provider, settings or [], members, verbose))


@controllers_app.command(context_settings={"allow_interspersed_args": False})
def run(
    arguments: Annotated[
        list[str], typer.Argument(help="Python files with controllers; or -- COMMAND.", show_default=False)
    ],
    each_cluster: Annotated[
        bool, typer.Option("--each-cluster", help="Run a command once for each cluster, with its kubeconfig.")
    ] = False,
    where: Annotated[str, typer.Option(help="Label selector on clusters, with --each-cluster.")] = "",
    kubeconfig: Kubeconfig = None,
) -> None:
    """Run controllers on a fleet, or any command once for each of its clusters."""
    if each_cluster:
        from reclock.cli import each_cluster as each_cluster_command

        _exit(lambda: each_cluster_command.each_cluster(arguments, kubeconfig, where))
    from reclock.cli import program

    if kubeconfig:
        os.environ["RECLOCK_KUBECONFIG"] = kubeconfig
    raise typer.Exit(program.main(arguments))


def _exit(work: Callable[[], Coroutine[Any, Any, int]]) -> NoReturn:
    try:
        code = asyncio.run(work())
    except CliError as error:
        print(f"reclock: {error}", file=sys.stderr)
        code = 1
    raise typer.Exit(code)
