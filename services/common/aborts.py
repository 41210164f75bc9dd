"""How servicers end a call with an error, and details that clients can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from services.common.errors import StatusError, cut, rpc_code


async def abort(
    context: grpc.aio.ServicerContext,
    code: grpc.StatusCode,
    message: str,
    details: Mapping[str, str] | None = None,
) -> NoReturn:
    """End the call with an error; `details` travel as a google.rpc.ErrorInfo (reason = key `reason`)."""
    if details:
        info = error_details_pb2.ErrorInfo(reason=details.get("reason", ""), domain="reclock.dev")
        info.metadata.update({key: value for key, value in details.items() if key != "reason"})
        await _abort(context, code, message, info)
    await context.abort(code, cut(message))
    raise AssertionError("abort returns never")


async def abort_bad_request(
    context: grpc.aio.ServicerContext, code: grpc.StatusCode, violations: Sequence[tuple[str, str]]
) -> NoReturn:
    """End the call with a google.rpc.BadRequest of (field, what is wrong with it); the message says the same."""
    bad = error_details_pb2.BadRequest()
    for path, text in violations:
        bad.field_violations.add(field=path, description=cut(text))
    await _abort(context, code, "; ".join(f"{path}: {text}" for path, text in violations), bad)


async def _abort(context: grpc.aio.ServicerContext, code: grpc.StatusCode, message: str, detail: Any) -> NoReturn:
    packed = AnyMessage()
    packed.Pack(detail)
    status = status_pb2.Status(code=code.value[0], message=cut(message), details=[packed])
    await context.abort(code, cut(message), trailing_metadata=(("grpc-status-details-bin", status.SerializeToString()),))
    raise AssertionError("abort returns never")


async def abort_status(context: grpc.aio.ServicerContext, error: StatusError) -> NoReturn:
    """End the call with the gRPC code that says the same as `error`."""
    await abort(context, rpc_code(error), error.message, {"reason": error.reason, "code": str(error.code)})
