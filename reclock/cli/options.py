"""Flags that several commands have, and how a command runs."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

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


def _completed(path: str, key: Callable[[dict[str, Any]], str]) -> Callable[[typer.Context, str], list[str]]:
    """Completion by what a list of the front names: nothing where the front cannot be asked."""

    def names(context: typer.Context, incomplete: str) -> list[str]:
        try:
            items = run(context.params.get("kubeconfig"), lambda api: api.items(path))
        except CliError:
            return []
        return [name for item in items if (name := key(item)).startswith(incomplete)]

    return names


def _resource(item: dict[str, Any]) -> str:
    spec = item["spec"]
    return f"{spec['resource']}.{spec['group']}" if spec.get("group") else str(spec["resource"])


complete_cluster = _completed(f"{GROUP}/clusters", lambda item: str(item["metadata"]["name"]))
ClusterName = Annotated[
    str, typer.Argument(help="Name of a cluster.", show_default=False, autocompletion=complete_cluster)
]
Resource = Annotated[
    str,
    typer.Option(
        "--resource", "-r", help="One resource (pods, jobs.batch); all when left out.",
        autocompletion=_completed(f"{GROUP}/apiaggregations", _resource),
    ),
]  # fmt: skip


def run_command(kubeconfig: str | None, work: Callable[[Api], Awaitable[None]]) -> None:
    """Do the work; what goes wrong is one line and exit code 1."""
    try:
        run(kubeconfig, work)
    except CliError as error:
        print(f"reclock: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
