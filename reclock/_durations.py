"""Times as protobuf has them."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration


def duration(seconds: float) -> Duration:
    """Seconds as protobuf has them."""
    made = Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made
