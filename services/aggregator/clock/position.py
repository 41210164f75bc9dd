"""How far the log has followed one cluster, and what a cluster's life is called.

An incarnation is `<kube-system uid>/<restore count>`: a cluster restored from a backup gives versions a second
time, so everything it says afterwards belongs to another life.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.aggregator.clock.varint import Reader, Writer

LAYOUT = 1


@dataclass(frozen=True, slots=True)
class Position:
    """The last member version in the log (`read`), where a watch starts again (`resume`), and the open diff.

    While `diff` is set the others keep their values from before it, and `target` is its incarnation.
    """

    incarnation: str
    read: int
    resume: int
    diff: bool = False
    target: str = ""

    def encode(self) -> bytes:
        """The value in etcd."""
        out = Writer(LAYOUT)
        out.number(int(self.diff))
        out.number(self.read)
        out.number(self.resume)
        out.text(self.incarnation)
        out.text(self.target)
        return out.done()


def decode_position(value: bytes) -> Position:
    """The position in a value of etcd; ValueError for what is no such value."""
    data = Reader(value, LAYOUT, "position")
    diff, read, resume = data.number(), data.number(), data.number()
    return Position(data.text(), read, resume, bool(diff), data.text())


def incarnation(uid: str, count: int) -> str:
    """Name of the `count`-th life of the cluster whose kube-system namespace has this uid."""
    return f"{uid}/{count}"


def split_incarnation(text: str) -> tuple[str, int]:
    """(kube-system uid, restore count); ("", 0) for none."""
    uid, slash, count = text.rpartition("/")
    return (uid, int(count)) if slash and count.isdigit() else (text, 0)
