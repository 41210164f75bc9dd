"""The table of errors."""

from __future__ import annotations

import json
import ssl

import grpc
import pytest

from services.common import errors
from services.common.errors import MemberUnreachable, StatusError


def test_body_is_a_status() -> None:
    status = json.loads(errors.not_found("pods", "web").body())
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 404, "NotFound")
    assert status["message"] == 'pods "web" not found'
    assert status["details"] == {"name": "web", "kind": "pods"}


def test_status_of_a_member_passes() -> None:
    sent = errors.conflict("deployments", "web", "the object has been modified", group="apps")
    got = StatusError.from_response(409, sent.body(), what="east")
    assert got.to_dict() == sent.to_dict()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [(404, "NotFound", StatusError), (429, "TooManyRequests", StatusError), (403, "Forbidden", StatusError),
     (500, "ServiceUnavailable", MemberUnreachable), (502, "ServiceUnavailable", MemberUnreachable)],
)  # fmt: skip
def test_foreign_bodies_are_dropped(code: int, reason: str, kind: type[StatusError]) -> None:
    error = StatusError.from_response(code, b"<html>secret login page</html>", what="east: GET /x")
    assert type(error) is kind
    assert error.reason == reason
    assert "secret" not in error.message


def test_long_text_is_cut() -> None:
    assert len(errors.bad_request("x" * 100_000).message) == errors.MAX_MESSAGE


def test_retry_after() -> None:
    error = StatusError.from_response(429, b"slow down", what="east", retry_after="7")
    assert error.retry_after == 7
    assert json.loads(error.body())["details"]["retryAfterSeconds"] == 7


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        out, value = bytes([number << 3]), value
        while value > 0x7F:
            out += bytes([value & 0x7F | 0x80])
            value >>= 7
        return out + bytes([value])
    return bytes([number << 3 | 2, len(value)]) + value


def test_protobuf_status_is_read() -> None:
    details = _field(1, b"web") + _field(3, b"pods") + _field(5, 300)
    raw = (_field(2, b"Failure") + _field(3, b"pods gone") + _field(4, b"NotFound") + _field(5, details)
           + _field(6, 404))  # fmt: skip
    body = b"k8s\x00" + _field(1, _field(1, b"v1") + _field(2, b"Status")) + _field(2, raw)
    error = StatusError.from_response(404, body, what="east")
    assert (error.reason, error.message, error.retry_after) == ("NotFound", "pods gone", 300)
    assert error.details == {"name": "web", "kind": "pods", "retryAfterSeconds": 300}
    for length in range(len(body)):
        # Whatever is cut off must end in an error of ours, not in an exception of the reader.
        assert StatusError.from_response(404, body[:length], what="east").code == 404


def test_connection_errors() -> None:
    for cause in (ConnectionRefusedError(111, "refused"), TimeoutError(), ssl.SSLError(1, "bad"), EOFError()):
        assert isinstance(errors.from_client_error(cause, "east"), MemberUnreachable)
    assert errors.from_client_error(KeyError("x"), "east").code == 500


def test_rpc_codes_round() -> None:
    assert errors.rpc_code(errors.already_exists("clusters", "east")) is grpc.StatusCode.ALREADY_EXISTS
    assert errors.rpc_code(errors.unavailable("x")) is grpc.StatusCode.UNAVAILABLE
    assert errors.rpc_code(errors.internal("x")) is grpc.StatusCode.INTERNAL


def test_version_of_the_future() -> None:
    status = errors.too_large_version(9, 5).to_dict()
    assert status["code"] == 504
    assert status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
