"""What the filters and scores say of one member, and how it is written in protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reclock.scheduler.v1 import scheduler_pb2 as pb
from services.common.kube import quantity

CAPACITY = "Capacity"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`filter` is the first one that fails, "" when the member is eligible; amounts are thousandths."""

    cluster: str
    filter: str = ""
    message: str = ""
    asked: Mapping[str, int] = field(default_factory=dict)
    free: Mapping[str, int] = field(default_factory=dict)
    score: float = 0.0
    fits: int = 0

    @property
    def eligible(self) -> bool:
        """True when every filter passes."""
        return not self.filter

    @property
    def may_wait(self) -> bool:
        """True when only the momentary room is missing: pods placed there would be Pending."""
        return self.filter in ("", CAPACITY)


def to_proto(verdict: Verdict, replicas: int = 0) -> pb.Verdict:
    """Write a verdict."""
    return pb.Verdict(
        cluster=verdict.cluster,
        eligible=verdict.eligible,
        filter=verdict.filter,
        message=verdict.message,
        asked=quantity.render_all(verdict.asked),
        free=quantity.render_all(verdict.free),
        score=round(max(0.0, min(verdict.score, 100.0))),
        fits=min(verdict.fits, 2**31 - 1),
        replicas=replicas,
    )


def from_proto(message: pb.Verdict) -> Verdict:
    """Read a verdict."""
    return Verdict(
        cluster=message.cluster,
        filter=message.filter if message.filter or message.eligible else "Worker",
        message=message.message,
        asked=quantity.parse_all(message.asked),
        free=quantity.parse_all(message.free),
        score=float(message.score),
        fits=message.fits,
    )
