"""`reclock markers` and the commands below it."""

from __future__ import annotations

from typing import Annotated

import typer

from reclock.cli import markers as command
from reclock.cli import upkeep
from reclock.cli.api import Api
from reclock.cli.options import Kubeconfig, Namespace, Output, Resource, run_command
from reclock.cli.output import Format

markers_app = typer.Typer(
    name="markers",
    help="List version markers; or verify, rebuild and look after them.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@markers_app.callback()
def markers(
    context: typer.Context,
    namespace: Namespace = "default",
    every: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.table,
) -> None:
    """List version markers: member version and fleet version of each object."""
    context.obj = kubeconfig
    if context.invoked_subcommand is None:
        run_command(kubeconfig, lambda api: command.markers(api, namespace, every, output))


@markers_app.command()
def stats(
    context: typer.Context, resource: Resource = "", kubeconfig: Kubeconfig = None, output: Output = Format.table
) -> None:
    """Show objects, bytes in etcd, window and versions per resource; and each etcd's size and health."""
    run_command(kubeconfig or context.obj, lambda api: upkeep.stats(api, resource, output))


@markers_app.command()
def verify(
    context: typer.Context, resource: Resource = "", kubeconfig: Kubeconfig = None, output: Output = Format.table
) -> None:
    """Compare every marker with the members' own lists and with etcd; exit code 2 when not all is right."""
    wrong: list[bool] = []

    async def work(api: Api) -> None:
        wrong.append(not await upkeep.verify(api, resource, output))

    run_command(kubeconfig or context.obj, work)
    if wrong[0]:
        raise typer.Exit(2)


@markers_app.command()
def rebuild(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Make all markers anew under a new base: every client gets 410 once and lists again."""

    def agreed(fleet: str) -> bool:
        return yes or typer.confirm(f"Remove and rebuild all markers of fleet {fleet}? Every client will list anew")

    run_command(kubeconfig or context.obj, lambda api: upkeep.rebuild(api, agreed))


@markers_app.command()
def defragment(context: typer.Context, kubeconfig: Kubeconfig = None) -> None:
    """Give etcd's free room back, one endpoint after another, and switch its quota alarm off."""
    run_command(kubeconfig or context.obj, upkeep.defragment)
