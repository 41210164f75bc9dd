"""`reclock queue`: the fair queues of all controllers, live; `pause`, `resume`, `weight` and `cap` of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from rich.live import Live

from reclock._errors import ReclockError
from reclock._queues import Queues, View
from reclock._service import describe
from reclock.cli.api import CliError
from reclock.cli.output import Format, console, page, say, show, table
from reclock.reconciler.v1 import reconciler_pb2 as pb

COLUMNS = (
    "CONTROLLER", "CLUSTER", "WAITING", "DELAYED", "RUNNING", "CAP", "WEIGHT", "SHARE", "WAIT50", "WAIT99", "WORK50", "WORK99",
    "LONGEST", "RETRIES", "STATE",
)  # fmt: skip
EMPTY = "no queues yet: a controller has one from the moment that a worker has registered it"
Work = Callable[[Queues], Awaitable[None]]


def rows(view: View) -> list[tuple[str, ...]]:
    """A line for each controller and cluster; wait and work are what 50 and 99 of 100 requests took at most."""
    return [_row(one) for one in sorted(view.queues, key=lambda one: (one.controller, one.cluster))]


def _row(one: pb.Queue) -> tuple[str, ...]:
    state = "paused" if one.paused else "ready" if one.synced else "listing"
    return (
        one.controller, one.cluster or "(host)", str(one.depth), str(one.delayed), str(one.processing), str(one.cap),
        f"{one.weight:g}", f"{one.share:.0%}", _of(one, "wait_p50"), _of(one, "wait_p99"),
        _of(one, "work_p50"), _of(one, "work_p99"), _seconds(one.longest.ToTimedelta().total_seconds()) if one.processing else "-", str(one.retries), state,
    )  # fmt: skip


def _of(one: pb.Queue, name: str) -> str:
    return _seconds(getattr(one, name).ToTimedelta().total_seconds()) if one.HasField(name) else "-"  # type: ignore[arg-type]


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f}ms" if value < 1 else f"{value:.1f}s" if value < 120 else f"{value / 60:.0f}m"


def notes(view: View) -> list[str]:
    """What the rows do not say: problems of sources, replicas that did not answer."""
    found = [f"{one.name}: {problem}" for one in view.controllers for problem in one.problems]
    return found + [f"replica {name} does not answer: its clusters are not shown" for name in view.missing_replicas]


async def list_queues(queues: Queues, controller: str, form: Format) -> None:
    """Print them once."""
    view = await queues.list(controller)
    show(MessageToDict(view), form, COLUMNS, rows(view), EMPTY)
    if form is Format.table:
        for note in notes(view):
            say(note, "yellow")


async def watch_queues(queues: Queues, controller: str, interval: float) -> None:
    """Show them until interrupted; one table after the other where this is no terminal."""
    if not console.is_terminal:
        async for view in queues.watch(controller, interval=interval):
            print(table(COLUMNS, rows(view)), flush=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        async for view in queues.watch(controller, interval=interval):
            live.update(page("\n".join([table(COLUMNS, rows(view)), *notes(view)])), refresh=True)


async def update(queues: Queues, controller: str, cluster: str, **change: Any) -> None:
    """Change a cluster's part, and say so."""
    await queues.update(cluster, controller=controller, **change)
    what = ", ".join(f"{name} {value}" for name, value in change.items())
    say(f"cluster {cluster or '(host)'} of {controller or 'every controller'}: {what}")


def run(reconciler: str | None, kubeconfig: str | None, work: Work) -> None:
    """Connect, do the work, disconnect. CliError with the service's own words."""
    asyncio.run(_run(reconciler, kubeconfig, work))


async def _run(reconciler: str | None, kubeconfig: str | None, work: Work) -> None:
    queues = Queues(reconciler=reconciler, kubeconfig=kubeconfig)
    try:
        async with queues:
            await work(queues)
    except ReclockError as error:
        raise CliError(str(error)) from error
    except grpc.aio.AioRpcError as error:
        hint = ""
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            hint = f"; is the reconciler at {queues.address}? Name it by --reconciler or RECLOCK_RECONCILER"
        raise CliError(describe(error) + hint) from error
