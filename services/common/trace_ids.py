"""Ids of traces that several processes add to without telling each other: each can tell them from what it knows."""

from __future__ import annotations

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

_root: tuple[int, int] | None = None


class Ids(RandomIdGenerator):  # type: ignore[misc]
    """Random ids, but for the span that `AsRoot` makes. For the TracerProvider."""

    def generate_trace_id(self) -> int:
        """See the base."""
        return _root[0] if _root is not None else int(super().generate_trace_id())

    def generate_span_id(self) -> int:
        """See the base."""
        return _root[1] if _root is not None else int(super().generate_span_id())


class AsRoot:
    """The span that is started in this block, which does not wait, is `span_id` of the trace `trace_id`."""

    def __init__(self, trace_id: int, span_id: int) -> None:
        self._ids = trace_id, span_id

    def __enter__(self) -> None:
        global _root
        _root = self._ids

    def __exit__(self, *_: object) -> None:
        global _root
        _root = None
