"""`reclock clusters`, with what is below it."""

from __future__ import annotations

from typing import Annotated

import typer

from reclock.cli import clusters as clusters_command
from reclock.cli.options import ClusterName, Kubeconfig, Output, run_command
from reclock.cli.output import Format

clusters_app = typer.Typer()


@clusters_app.callback(invoke_without_command=True)
def clusters(context: typer.Context, kubeconfig: Kubeconfig = None, output: Output = Format.table) -> None:
    """List the clusters of the fleet, with what is wrong with them."""
    if context.invoked_subcommand is None:
        run_command(kubeconfig, lambda api: clusters_command.clusters(api, output))
    else:
        context.obj = (kubeconfig, output)


@clusters_app.command()
def describe(
    context: typer.Context, cluster: ClusterName, kubeconfig: Kubeconfig = None, output: Output = Format.table
) -> None:
    """Say all about a cluster: where it is from, its health, how fast it answers, its last changes."""
    before, form = context.obj
    chosen = output if output is not Format.table else form
    run_command(kubeconfig or before, lambda api: clusters_command.describe(api, cluster, chosen))


@clusters_app.command()
def watch(
    context: typer.Context,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the clusters live, until interrupted."""
    before, _ = context.obj
    run_command(kubeconfig or before, lambda api: clusters_command.watch(api, interval))
