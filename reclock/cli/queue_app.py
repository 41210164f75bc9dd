"""`reclock queue` and the commands below it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from reclock.cli.access import DEMO
from reclock.cli.api import CliError
from reclock.cli.options import Kubeconfig, Output, complete_cluster
from reclock.cli.output import Format

queue_app = typer.Typer(
    name="queue",
    help="Show the controllers' fair queues, live with -w; pause, resume and weigh clusters, at once.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
NUMBERS = {"ignore_unknown_options": True}
"""So that -1 is a value, which the service refuses with what is allowed, and no unknown option."""
Controller = Annotated[str, typer.Option("--controller", "-c", help="One controller; all when left out.")]
Reconciler = Annotated[
    str | None,
    typer.Option("--reconciler", help="Its gRPC address; else $RECLOCK_RECONCILER, the demo's, 127.0.0.1:7404."),
]
ClusterName = Annotated[str, typer.Argument(help="A cluster; '' is the host.", show_default=False, autocompletion=complete_cluster)]


@queue_app.callback()
def queue(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Until interrupted.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks, with -w.")] = 1.0,
    controller: Controller = "",
    reconciler: Reconciler = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.table,
) -> None:
    """List every cluster's part of every controller's queue."""
    if context.invoked_subcommand is not None:
        if controller or reconciler or kubeconfig:  # ignored, `-c x pause east` would pause it for every controller
            raise typer.BadParameter(f"write options behind {context.invoked_subcommand}")
        return
    if watch:
        _run(reconciler, kubeconfig, lambda command, queues: command.watch_queues(queues, controller, interval))
    else:
        _run(reconciler, kubeconfig, lambda command, queues: command.list_queues(queues, controller, output))


@queue_app.command()
def pause(cluster: ClusterName, controller: Controller = "", reconciler: Reconciler = None, kubeconfig: Kubeconfig = None) -> None:
    """Hand out nothing more of a cluster; what runs goes on."""
    _run(reconciler, kubeconfig, lambda command, queues: command.update(queues, controller, cluster, paused=True))


@queue_app.command()
def resume(cluster: ClusterName, controller: Controller = "", reconciler: Reconciler = None, kubeconfig: Kubeconfig = None) -> None:
    """Hand its requests out again."""
    _run(reconciler, kubeconfig, lambda command, queues: command.update(queues, controller, cluster, paused=False))


@queue_app.command(context_settings=NUMBERS)
def weight(
    cluster: ClusterName,
    value: Annotated[float, typer.Argument(help="1 is the usual; 0.000001 to 1000000.", show_default=False)],
    controller: Controller = "",
    reconciler: Reconciler = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Set a cluster's share relative to the others."""
    _run(reconciler, kubeconfig, lambda command, queues: command.update(queues, controller, cluster, weight=value))


@queue_app.command(context_settings=NUMBERS)
def cap(
    cluster: ClusterName,
    value: Annotated[int, typer.Argument(help="Most requests at once; 1 to 1000000.", show_default=False)],
    controller: Controller = "",
    reconciler: Reconciler = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Set how many requests of a cluster may run at once."""
    _run(reconciler, kubeconfig, lambda command, queues: command.update(queues, controller, cluster, cap=value))


def _run(reconciler: str | None, kubeconfig: str | None, work: Callable[[Any, Any], Awaitable[None]]) -> None:
    """Do the work, which gets `reclock.cli.queue` and the queues."""
    from reclock.cli import queue as command  # here: gRPC is loaded by those who need it

    try:
        command.run(
            reconciler or os.environ.get("RECLOCK_RECONCILER") or _demo(), kubeconfig, lambda queues: work(command, queues)
        )
    except CliError as error:
        print(f"reclock: {error}", file=sys.stderr)
        raise typer.Exit(1) from error


def _demo() -> str | None:
    """The address of the fleet that runs in this directory, whose ports may be others than the usual ones."""
    try:
        described = json.loads((DEMO.parent / "fleet.json").read_text())
        return str(described["services"]["reconciler"]["grpcAddress"])
    except (OSError, ValueError, KeyError):
        return None
