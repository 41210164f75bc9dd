"""The commands and their flags."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from reclock import __version__
from reclock.cli import clusters as clusters_command
from reclock.cli import drain as drain_command
from reclock.cli import explain as explain_command
from reclock.cli import kubeconfig as kubeconfig_command
from reclock.cli import top as top_command
from reclock.cli.api import Api
from reclock.cli.clusters_app import clusters_app
from reclock.cli.controllers_app import controllers_app
from reclock.cli.markers_app import markers_app
from reclock.cli.options import ClusterName, Kubeconfig, Namespace, Output, Resource, run_command
from reclock.cli.output import Format, console, show
from reclock.cli.queue_app import queue_app

app = typer.Typer(
    help="See and steer a fleet of Kubernetes clusters behind one API.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(clusters_app, name="clusters")
app.add_typer(markers_app)
app.add_typer(controllers_app)
app.add_typer(queue_app)


@app.command()
def top(
    resource: Resource = "",
    once: Annotated[bool, typer.Option("--once", help="Print one table and end; -o json and yaml always do.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1, max=60)] = 1.0,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.table,
) -> None:
    """Show each member's lag, events and state, each resource's watches and commits, live."""

    async def work(api: Api) -> None:
        if once or output is not Format.table:
            await top_command.top_once(api, resource, interval, output)
        else:
            await top_command.top_live(api, resource, interval)

    run_command(kubeconfig, work)


@app.command()
def explain(
    target: Annotated[str, typer.Argument(help="KIND/NAME, for example deployment/web.", show_default=False)],
    namespace: Namespace = "default",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.table,
) -> None:
    """Say per member why a workload is there, or what keeps it away."""
    run_command(kubeconfig, lambda api: explain_command.explain(api, target, namespace, output))


@app.command()
def cordon(cluster: ClusterName, kubeconfig: Kubeconfig = None) -> None:
    """Keep new work away from a cluster."""
    run_command(kubeconfig, lambda api: clusters_command.cordon(api, cluster, "NoSchedule"))


@app.command()
def uncordon(cluster: ClusterName, kubeconfig: Kubeconfig = None) -> None:
    """Let work come to a cluster again."""
    run_command(kubeconfig, lambda api: clusters_command.uncordon(api, cluster))


@app.command()
def forget(cluster: ClusterName, kubeconfig: Kubeconfig = None) -> None:
    """Say that a lost cluster will not come back, so that all of its work may move."""
    run_command(kubeconfig, lambda api: clusters_command.forget(api, cluster))


@app.command()
def drain(
    cluster: ClusterName,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until nothing is left, and show what is.")
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.")] = 600,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Move a cluster's work to others, and wait for it to go. `reclock uncordon` stops a drain.

    Exit code 1, with a table of what is left and why, when time is over or only what no policy lets move is left.
    """

    async def work(api: Api) -> None:
        await clusters_command.cordon(api, cluster, "NoExecute")
        if wait:
            await drain_command.wait(api, cluster, timeout)

    run_command(kubeconfig, work)


@app.command()
def version(
    client: Annotated[bool, typer.Option("--client", help="Only this program's version.")] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.table,
) -> None:
    """Print the versions of this program and of the server."""
    rows = [("client", __version__)]
    if not client:

        async def work(api: Api) -> None:
            rows.append(("server", (await api.call("GET", "/version"))["gitVersion"]))

        run_command(kubeconfig, work)
    show(dict(rows), output, ("", "VERSION"), rows, "")


@app.command()
def kubeconfig(
    cluster: Annotated[
        str | None, typer.Argument(help="A member, to reach it through the front; else the fleet.")
    ] = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print a kubeconfig for the fleet, or for one member through the front."""

    async def work(api: Api) -> None:
        if cluster:
            await kubeconfig_command.require_cluster(api, cluster)
        print(kubeconfig_command.text(kubeconfig, cluster), end="")

    run_command(kubeconfig, work)


def main() -> None:
    """Entry point of `reclock` and `kubectl reclock`."""
    try:
        app()
    except KeyboardInterrupt:
        console.print()
        sys.exit(130)
