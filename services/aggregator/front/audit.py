"""One structured line per write and tunnel: who did what, where, and how it ended."""

from __future__ import annotations

import json
import logging

from services.aggregator.front.server import FrontRequest
from services.aggregator.front.tunnel import TUNNELS
from services.aggregator.types import Call
from services.common import telemetry

log = logging.getLogger("reclock.audit")

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection", "post", "put"})


REVIEWS = frozenset({"authentication.k8s.io", "authorization.k8s.io"})
"""Groups whose creates store nothing: questions, not writes."""


def is_audited(call: Call) -> bool:
    """Whether the call is a write or a tunnel."""
    info = call.info
    if info.group in REVIEWS:
        return False
    return info.verb in WRITES or (info.is_resource and info.subresource in TUNNELS)


def record(call: Call, by: str, outcome: int | str, took: float) -> None:
    """Write the line; `by` is who was authenticated (the user may be impersonated), `took` in seconds."""
    info, request = call.info, call.request
    assert isinstance(request, FrontRequest)
    fields: dict[str, object] = {
        "auditId": request.audit_id, "user": call.user.name, "verb": info.verb, "path": request.rel_url.raw_path,
        "outcome": outcome, "ms": round(took * 1000, 1),
    }  # fmt: skip
    if by != call.user.name:
        fields["by"] = by
    if info.cluster is not None:
        fields["cluster"] = info.cluster
    if request.remote:
        fields["from"] = request.remote
    if trace := telemetry.current_trace_id():
        fields["traceId"] = trace
    fields.update(call.audit)
    text = " ".join(f"{key}={_plain(value)}" for key, value in fields.items())
    # Leader elections renew their leases every few seconds: such lines would bury the others.
    level = logging.DEBUG if info.resource == "leases" else logging.INFO
    log.log(level, "%s", text, extra={"fields": {"audit": fields}})


def _plain(value: object) -> str:
    """A value as text; quoted where it could be taken for more than one."""
    text = str(value)
    return text if text.isprintable() and " " not in text and '"' not in text else json.dumps(text)
