"""The commands and their flags."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from reclock import __version__
from reclock.cli import clusters as clusters_command
from reclock.cli import explain as explain_command
from reclock.cli import kubeconfig as kubeconfig_command
from reclock.cli import markers as markers_command
from reclock.cli.api import Api, CliError, run
from reclock.cli.output import Format, console, show

app = typer.Typer(
    help="See and steer a fleet of Kubernetes clusters behind one API.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", help="Kubeconfig of the front; else $KUBECONFIG, .reclock/kubeconfig, ~/.kube/config."
    ),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="How to print.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace.")]
ClusterName = Annotated[str, typer.Argument(help="Name of a cluster.", show_default=False)]


def _run(kubeconfig: str | None, work: Callable[[Api], Awaitable[None]]) -> None:
    try:
        run(kubeconfig, work)
    except CliError as error:
        print(f"reclock: {error}", file=sys.stderr)
        raise typer.Exit(1) from error


@app.command()
def clusters(kubeconfig: Kubeconfig = None, output: Output = Format.table) -> None:
    """List the clusters of the fleet, with what is wrong with them."""
    _run(kubeconfig, lambda api: clusters_command.clusters(api, output))


@app.command()
def explain(
    target: Annotated[str, typer.Argument(help="KIND/NAME, for example deployment/web.", show_default=False)],
    namespace: Namespace = "default",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.table,
) -> None:
    """Say per member why a workload is there, or what keeps it away."""
    _run(kubeconfig, lambda api: explain_command.explain(api, target, namespace, output))


@app.command()
def markers(
    namespace: Namespace = "default",
    every: Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.")] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.table,
) -> None:
    """List version markers: member version and fleet version of each object."""
    _run(kubeconfig, lambda api: markers_command.markers(api, namespace, every, output))


@app.command()
def cordon(cluster: ClusterName, kubeconfig: Kubeconfig = None) -> None:
    """Keep new work away from a cluster."""
    _run(kubeconfig, lambda api: clusters_command.cordon(api, cluster, "NoSchedule"))


@app.command()
def uncordon(cluster: ClusterName, kubeconfig: Kubeconfig = None) -> None:
    """Let work come to a cluster again."""
    _run(kubeconfig, lambda api: clusters_command.uncordon(api, cluster))


@app.command()
def forget(cluster: ClusterName, kubeconfig: Kubeconfig = None) -> None:
    """Say that a lost cluster will not come back, so that all of its work may move."""
    _run(kubeconfig, lambda api: clusters_command.forget(api, cluster))


@app.command()
def drain(
    cluster: ClusterName,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until nothing is placed there.")
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.")] = 600,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Move a cluster's work to others."""

    async def work(api: Api) -> None:
        await clusters_command.cordon(api, cluster, "NoExecute")
        if wait:
            await clusters_command.wait_drained(api, cluster, timeout)

    _run(kubeconfig, work)


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

        _run(kubeconfig, work)
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

    _run(kubeconfig, work)


def main() -> None:
    """Entry point of `reclock` and `kubectl reclock`."""
    try:
        app()
    except KeyboardInterrupt:
        console.print()
        sys.exit(130)
