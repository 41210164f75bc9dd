"""Objects whose requests only a worker knows: asked by `Map`, again by another one when nobody answers in time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.reconciler.work.mapping import ByWorker
from services.reconciler.work.seat import Seat
from services.reconciler.work.spec import SourceSpec

Obj = dict[str, Any]
Key = tuple[str, str, str, str]
"""(source, cluster, namespace, name)."""
OPEN_MAX = 64
"""Maps that one worker may have unanswered; the rest waits, each object once, in its last state."""


@dataclass(slots=True)
class Question:
    """One object to map."""

    source: SourceSpec
    cluster: str
    obj: Obj
    deleted: bool
    initial: bool

    @property
    def key(self) -> Key:
        metadata = self.obj["metadata"]
        return self.source.ident, self.cluster, metadata.get("namespace", ""), metadata["name"]


class Maps:
    """The questions of one controller on one replica. At least one answer is taken for the last state of each object."""

    def __init__(self, seats: Callable[[], Iterable[Seat]], patience: float, now: Callable[[], float]) -> None:
        self._seats = seats
        self._patience = patience
        self._now = now
        self._ids = itertools.count(1)
        self._waiting: dict[Key, Question] = {}
        self._open: dict[int, tuple[Question, Seat, float]] = {}
        self._counts: dict[Seat, int] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._open)

    def ask(self, question: Question) -> None:
        """Ask about an object, now or when a worker has room."""
        self._waiting.pop(question.key, None)
        self._waiting[question.key] = question
        self.push()

    def answer(self, seat: Seat, number: int) -> Question | None:
        """The question that `seat` was asked under that number, now closed; None when there is none."""
        found = self._open.get(number)
        if found is None or found[1] is not seat:
            return None
        self._close(number)
        self.push()
        return found[0]

    def push(self) -> None:
        """Send what waits to workers that have room."""
        while self._waiting:
            seat = self._free()
            if seat is None:
                return
            question = self._waiting.pop(next(iter(self._waiting)))
            number = next(self._ids)
            self._open[number] = (question, seat, self._now() + self._patience)
            self._counts[seat] = self._counts.get(seat, 0) + 1
            seat.deliver(map=pb.Map(
                id=number, source=question.source.ident, cluster=question.cluster, deleted=question.deleted,
                object=msgspec.json.encode(_shown(question)),
            ))  # fmt: skip

    def retry(self) -> None:
        """Ask anew what was not answered in time."""
        now = self._now()
        self._again([number for number, (_, _, ends) in self._open.items() if ends <= now])

    def left(self, seat: Seat) -> None:
        """A worker is gone: what it was asked is asked of others."""
        self._again([number for number, (_, asked, _) in self._open.items() if asked is seat])

    def drop(self, cluster: str) -> None:
        """A cluster is gone: nothing of it is asked, and answers make nothing."""
        for key in [key for key in self._waiting if key[1] == cluster]:
            del self._waiting[key]
        for number in [number for number, (question, _, _) in self._open.items() if question.cluster == cluster]:
            self._close(number)

    def _again(self, numbers: list[int]) -> None:
        for number in numbers:
            question = self._close(number)
            # A newer state that waits already wins.
            self._waiting.setdefault(question.key, question)
        self.push()

    def _close(self, number: int) -> Question:
        question, seat, _ = self._open.pop(number)
        self._counts[seat] -= 1
        if not self._counts[seat]:
            del self._counts[seat]
        return question

    def _free(self) -> Seat | None:
        room = [seat for seat in self._seats() if seat.version >= 1 and self._counts.get(seat, 0) < OPEN_MAX]
        return min(room, key=lambda seat: self._counts.get(seat, 0), default=None)


def _shown(question: Question) -> Obj:
    to = question.source.to
    if isinstance(to, ByWorker) and to.whole_object:
        return question.obj
    return {key: question.obj[key] for key in ("apiVersion", "kind", "metadata") if key in question.obj}
