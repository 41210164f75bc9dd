"""Which types have a protobuf form: Kubernetes' own do, custom resources have JSON only."""

from __future__ import annotations

import time

from services.aggregator.protobuf import has_type
from services.aggregator.reads.negotiate import PROTOBUF_TYPE, Negotiated, negotiate
from services.aggregator.types import Aggregated, Call
from services.common.errors import StatusError

REMEMBER = 300.0  # seconds that a member's refusal counts


class Representations:
    """Negotiates with the type in mind. A member may serve a type of Kubernetes' in JSON only (as a custom resource,
    or through a proxy): once one refused, all answers of the type are JSON for a while."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, str, str], float] = {}

    def negotiate(self, call: Call, aggregated: Aggregated) -> Negotiated:
        """The form for a call; StatusError 406."""
        headers = call.request.headers
        return negotiate(
            headers.get("Accept", ""), query=call.query, user_agent=headers.get("User-Agent", ""),
            protobuf=self._has(call, aggregated), partial_protobuf=not self._was_refused(call, aggregated, "partial"),
        )  # fmt: skip

    def of_write(self, call: Call, aggregated: Aggregated) -> Negotiated:
        """The form of a write's answer, or of a subresource: whole or metadata only; Kubernetes answers no Table there.

        StatusError 406 for protobuf of a type that has none; all else that is not known is answered in JSON.
        """
        try:
            form = self.negotiate(call, aggregated)
        except StatusError:
            if PROTOBUF_TYPE in call.request.headers.get("Accept", ""):
                raise
            return Negotiated()
        if form.kind == "table":
            return Negotiated()
        return form

    def refuse(self, call: Call, aggregated: Aggregated, form: Negotiated) -> None:
        """A member answered 406 to this form."""
        self._refused[aggregated.key, call.info.version, form.kind] = time.monotonic() + REMEMBER

    def _has(self, call: Call, aggregated: Aggregated) -> bool:
        resource = aggregated.at(call.info.version)
        known = has_type(resource.group, resource.version, resource.kind)
        return known and not self._was_refused(call, aggregated, "object")

    def _was_refused(self, call: Call, aggregated: Aggregated, kind: str) -> bool:
        return time.monotonic() < self._refused.get((aggregated.key, call.info.version, kind), 0.0)

