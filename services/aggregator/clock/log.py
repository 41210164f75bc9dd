"""The log: every put of a resource within the window, in fleet order, and cursors that walk it.

An entry is the marker itself. Entries are appended and dropped by the resource's state alone, in one task;
cursors only read.
"""

from __future__ import annotations

from _fastpath.marker import Marker, first_after, visible

TRIM = 4096


class Log:
    """`floor` is the fleet version of the newest dropped entry: a version below it cannot be resumed."""

    def __init__(self, floor: int = 0) -> None:
        self.entries: list[Marker] = []
        self.start = 0
        """Index of the first entry that is kept; those before it are gone and wait for `del`."""
        self.dropped = 0
        """Entries that were deleted from the list's front: sequence number minus index."""
        self.floor = floor

    def __len__(self) -> int:
        return len(self.entries) - self.start

    def append(self, marker: Marker) -> None:
        """Add the newest put."""
        self.entries.append(marker)

    @property
    def last(self) -> Marker | None:
        """The newest entry."""
        return self.entries[-1] if len(self) else None

    def after(self, fleet: int) -> int:
        """Sequence number of the first entry above `fleet`."""
        return self.dropped + first_after(self.entries, self.start, fleet)

    def slice(self, sequence: int, limit: int) -> tuple[list[Marker], int]:
        """(shown entries from `sequence` on, the sequence number behind the last one looked at)."""
        start = sequence - self.dropped
        end = min(start + limit, len(self.entries))
        return visible(self.entries, start, end), self.dropped + max(start, end)

    def drop(self, fleet: int, limit: int) -> list[Marker]:
        """Drop the entries up to and including `fleet`, `limit` at most; return them.

        The state before a dropped entry is out of the window: its link is cut, so that it is freed.
        """
        end = min(first_after(self.entries, self.start, fleet), self.start + limit)
        out = self.entries[self.start : end]
        for one in out:
            one.cut()
        if out:
            self.floor = out[-1].fleet
            self.start = end
        if self.start >= TRIM and self.start * 2 >= len(self.entries):
            del self.entries[: self.start]
            self.dropped += self.start
            self.start = 0
        elif out:
            # Frees the markers now, without moving the list.
            filler = out[-1]
            self.entries[self.start - len(out) : self.start] = [filler] * len(out)
        return out
