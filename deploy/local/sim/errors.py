"""What a simulated API server refuses with: metav1.Status answers, in kube-apiserver's words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Cause(NamedTuple):
    """One entry of `details.causes`; `body` is the text after the field's name."""

    reason: str
    field: str
    body: str


class Refused(Exception):
    """An answer >= 400 with a metav1.Status as its body."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        retry_after: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.metadata = metadata or {}
        self.retry_after = retry_after

    def status(self) -> dict[str, Any]:
        """The body."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body


def _details(group: str, kind: str, name: str) -> dict[str, Any]:
    found = {"name": name, "group": group, "kind": kind}
    return {key: value for key, value in found.items() if value}


def qualified(group: str, name: str) -> str:
    """`deployments.apps`, `pods`: how messages name a resource or a kind."""
    return f"{name}.{group}" if group else name


def not_found(group: str, resource: str, name: str) -> Refused:
    message = f'{qualified(group, resource)} "{name}" not found'
    return Refused(404, "NotFound", message, details=_details(group, resource, name))


def no_such_resource() -> Refused:
    """What a path that nothing serves answers to a client that takes JSON."""
    return Refused(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(group: str, resource: str, name: str) -> Refused:
    message = f'{qualified(group, resource)} "{name}" already exists'
    return Refused(409, "AlreadyExists", message, details=_details(group, resource, name))


def conflict(group: str, resource: str, name: str, why: str) -> Refused:
    message = f'Operation cannot be fulfilled on {qualified(group, resource)} "{name}": {why}'
    return Refused(409, "Conflict", message, details=_details(group, resource, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def forbidden(group: str, resource: str, name: str, why: str, causes: Sequence[Cause] = ()) -> Refused:
    what = f'{qualified(group, resource)} "{name}"' if name else qualified(group, resource)
    details = _details(group, resource, name)
    if causes:
        details["causes"] = [{"reason": c.reason, "message": c.body, "field": c.field} for c in causes]
    return Refused(
        403, "Forbidden", f"{what} is forbidden: {why}" if what else f"forbidden: {why}", details=details
    )


def invalid(group: str, kind: str, name: str, causes: Iterable[Cause]) -> Refused:
    """422 with every cause; several are put in brackets, doubles once, as field.ErrorList does."""
    causes = list(causes)
    texts = list(dict.fromkeys(f"{c.field}: {c.body}" if c.field else c.body for c in causes))
    said = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    message = f'{qualified(group, kind)} "{name}" is invalid' + (f": {said}" if texts else "")
    details = _details(group, kind, name)
    if causes:
        details["causes"] = [{"reason": c.reason, "message": c.body, "field": c.field} for c in causes]
    return Refused(422, "Invalid", message, details=details)


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def expired(message: str, **metadata: Any) -> Refused:
    return Refused(410, "Expired", message, metadata=metadata)


def too_large_version(wanted: int, current: int) -> Refused:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Refused(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        retry_after=1,
    )


def method_not_supported(group: str, resource: str, action: str) -> Refused:
    message = f'{action} is not supported on resources of kind "{qualified(group, resource)}"'
    return Refused(405, "MethodNotAllowed", message, details=_details(group, resource, ""))


def method_not_allowed() -> Refused:
    """A method that no handler of the path takes."""
    message = "the server does not allow this method on the requested resource"
    return Refused(405, "MethodNotAllowed", message, details={})


def internal(message: str) -> Refused:
    return Refused(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        details={"causes": [{"message": message}]},
    )


def unauthorized() -> Refused:
    return Refused(401, "Unauthorized", "Unauthorized")


def not_acceptable() -> Refused:
    """A representation of the object that there is not."""
    accepted = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    return Refused(406, "NotAcceptable", f"only the following media types are accepted: {accepted}")


def no_such_media_type() -> Refused:
    """A media type that no handler writes."""
    message = (
        "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, "
        "application/vnd.kubernetes.protobuf, application/json;stream=watch, "
        "application/vnd.kubernetes.protobuf;stream=watch"
    )
    return Refused(406, "NotAcceptable", message, details={})


def no_such_patch() -> Refused:
    """A patch of a media type that is none of a patch."""
    return Refused(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})


def unprocessable() -> Refused:
    """A JSON patch that cannot be carried out."""
    return Refused(
        422, "Invalid", "the server rejected our request due to an error in our request", details={}
    )


def unsupported_media_type(accepted: Sequence[str]) -> Refused:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return Refused(415, "UnsupportedMediaType", message)


def unavailable(message: str, retry_after: int = 1) -> Refused:
    return Refused(503, "ServiceUnavailable", message, retry_after=retry_after)


def too_many_requests(message: str, details: dict[str, Any] | None = None, retry_after: int = 0) -> Refused:
    return Refused(429, "TooManyRequests", message, details=details, retry_after=retry_after)


def internal_plain(message: str) -> Refused:
    """500 from a layer that wraps nothing."""
    return Refused(500, "", message)
