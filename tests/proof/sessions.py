"""A history cut into sessions: a list, and the watches that follow from it without another list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from tests.proof.history import Bookmark, Ended, Event, History, Key, Listed, Opened, Record, Seen

AROUND = 4
FAR = 2000
"""Records that are looked through for those that are about an object."""


@dataclass(slots=True)
class Session:
    """From version `start` to `end` the client was told everything."""

    history: History
    first: int
    """Place of its first record."""
    start: int
    end: int
    held: dict[Key, Seen] = field(default_factory=dict)
    """What it held in the end."""
    events: list[tuple[int, Event]] = field(default_factory=list)
    """With their places among the history's records."""


def sessions(history: History) -> Iterator[Session]:
    """Sessions in order; what the events say is taken as it is (I1 judges it)."""
    current: Session | None = None
    for place, record in enumerate(history.records):
        if isinstance(record, Listed) and record.follows:
            if current is not None:
                yield current
            held = {one.key: one for one in record.items}
            current = Session(history, place, record.version, record.version, held)
        elif isinstance(record, Opened) and current is None:
            current = Session(history, place, record.version, record.version)
        elif isinstance(record, Event) and current is not None:
            current.events.append((place, record))
            current.end = max(current.end, record.seen.fleet)
            if record.type == "DELETED":
                current.held.pop(record.seen.key, None)
            else:
                current.held[record.seen.key] = record.seen
        elif isinstance(record, Bookmark) and current is not None:
            current.end = max(current.end, record.version)
    if current is not None:
        yield current


def excerpt(history: History, place: int, key: Key | None = None) -> tuple[str, ...]:
    """Records around a place; with `key` only those of that object, and what is about no object."""
    before = _near(history, range(place - 1, max(place - FAR, -1), -1), key)
    after = _near(history, range(place + 1, min(place + FAR, len(history.records))), key)
    return tuple(
        f"{'>' if at == place else ' '} #{at} {_text(history.records[at])}" for at in [*before[::-1], place, *after]
    )


def _near(history: History, places: range, key: Key | None) -> list[int]:
    return list(islice((at for at in places if _about(history.records[at], key)), AROUND))


def _about(record: Record, key: Key | None) -> bool:
    if key is None:
        return True
    if isinstance(record, Event):
        return record.seen.key == key
    if isinstance(record, Bookmark):
        return False
    return isinstance(record, Opened | Ended | Listed) or getattr(record, "key", None) == key


def _text(record: Record) -> str:
    if isinstance(record, Listed):
        return f"{record.ended:.3f} list of {len(record.items)} at {record.version} by {record.replica or '-'}"
    if isinstance(record, Event):
        one = record.seen
        return (
            f"{record.at:.3f} {record.type} {one.namespace}/{one.name} {one.fleet} uid {one.uid[:8]} of {one.cluster}"
            f" stamp {one.stamp}"
        )
    return str(record)
