"""Runs a handler for one request, and says in the protocol's words how it went."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, cast

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, StatusCode

from reclock._controller import AsyncHandler, Controller, PlainHandler
from reclock._durations import duration
from reclock._errors import ApiError, LeaseLost
from reclock._fleet import Fleet
from reclock._leases import Held
from reclock._request import Query, Request, SyncRequest
from reclock._results import Requeue, Result, Terminal
from reclock._sync import Caller
from reclock.reconciler.v1 import reconciler_pb2 as pb

_TEXT = 2000
_tracer = trace.get_tracer("reclock")


async def handle(controller: Controller, held: Held, fleet: Fleet, query: Query) -> pb.Done:
    """Call the handler in a span of the request's trace; what it raises is in the answer.

    Raises only CancelledError, when our task is cancelled; a thread has ended then, too.
    """
    message = held.message
    parent = propagate.extract({"traceparent": message.traceparent}) if message.traceparent else None
    where = {"reclock.cluster": message.cluster, "k8s.namespace.name": message.namespace, "reclock.name": message.name}
    with _tracer.start_as_current_span(
        f"reconcile {controller.name}", context=parent, kind=SpanKind.CONSUMER, attributes=where
    ) as span:
        result = await _call(controller, held, fleet, query)
        if isinstance(result, Exception) and not isinstance(result, Requeue):
            span.record_exception(result)
            span.set_status(StatusCode.ERROR, str(result)[:_TEXT])
    return done(message.token, result)


async def _call(controller: Controller, held: Held, fleet: Fleet, query: Query) -> Result:
    message = held.message
    resource = controller.resource(message.source)
    request: Request | SyncRequest
    try:
        if controller.is_async:
            request = Request(message, controller.name, resource, fleet, query)
            result = await cast(AsyncHandler, controller.handler)(request)
        else:
            held.call = Caller(asyncio.get_running_loop())
            request = SyncRequest(message, controller.name, resource, fleet, query, held.call)
            plain, given = cast(PlainHandler, controller.handler), request
            result = await _in_thread(lambda: plain(given), f"{controller.name} {request}")
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if held.lost or (task is not None and task.cancelling()):
            raise
        return RuntimeError("the handler was cancelled from within")
    except Exception as error:
        result = error
    _report(result, request)
    if result is None or isinstance(result, Exception):
        return result
    kind = type(result).__name__
    return Terminal(f"the handler returned {kind}: None, Requeue, Terminal or an exception are results")


def _report(result: Any, request: Request | SyncRequest) -> None:
    if result is None or isinstance(result, Requeue | LeaseLost):
        return
    if isinstance(result, Terminal | ApiError):
        request.log.warning("%s: %s", type(result).__name__, result)  # says enough by itself
    elif isinstance(result, Exception):
        request.log.warning("failed: %s", result, exc_info=result)


async def _in_thread(work: Callable[[], Result], name: str) -> Result:
    """Run it in a daemon thread (one that hangs must not keep the process), and wait for its end, also when cancelled."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Result] = loop.create_future()
    context = copy_context()

    def tell(result: Result, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(result)
        else:
            ended.set_exception(error)

    def run() -> None:
        result: Result = None
        failure: BaseException | None = None
        try:
            result = context.run(work)
        except Exception as error:
            failure = error
        except BaseException as error:  # SystemExit and such end the handler, not the worker
            failure = RuntimeError(f"the handler raised {type(error).__name__}")
        try:
            loop.call_soon_threadsafe(tell, result, failure)
        except RuntimeError:
            return  # the loop is closed: the process ends

    threading.Thread(target=run, name=f"reclock {name}", daemon=True).start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        # The thread goes on: its slot and its lease are not free before it has ended.
        await asyncio.wait({ended})
        if not ended.cancelled():
            ended.exception()
        raise


def done(token: str, result: Result) -> pb.Done:
    """A result as the protocol has it."""
    made = pb.Done(token=token)
    if isinstance(result, Requeue):
        made.requeue_after.CopyFrom(duration(result.after))
        if result.priority is not None:
            made.priority = result.priority
    elif result is not None:
        made.error = (f"{type(result).__name__}: {result}" if str(result) else type(result).__name__)[:_TEXT]
        made.terminal = isinstance(result, Terminal)
    return made
