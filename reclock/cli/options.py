"""Flags that several commands have, and how a command runs."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from reclock.cli.api import GROUP, Api, CliError, run
from reclock.cli.output import Format

Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", help="Kubeconfig of the front; else $KUBECONFIG, .reclock/kubeconfig, ~/.kube/config."
    ),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="How to print.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace.")]

def _cluster_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the fleet's clusters, for completion: nothing where the front cannot be asked."""
    try:
        items = run(context.params.get("kubeconfig"), lambda api: api.items(f"{GROUP}/clusters"))
    except CliError:
        return []
    return [name for item in items if (name := item["metadata"]["name"]).startswith(incomplete)]


ClusterName = Annotated[
    str, typer.Argument(help="Name of a cluster.", show_default=False, autocompletion=_cluster_names)
]


def run_command(kubeconfig: str | None, work: Callable[[Api], Awaitable[None]]) -> None:
    """Do the work; what goes wrong is one line and exit code 1."""
    try:
        run(kubeconfig, work)
    except CliError as error:
        print(f"reclock: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
