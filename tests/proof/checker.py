"""Checks recorded histories against the clock's invariants (docs/clock.md). Pure: one function each, which
returns its breaches; `check` runs all. I9 (nobody is held up by the slow) is measured by whoever makes the run."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

from tests.proof.history import (
    Bookmark,
    Breach,
    Ended,
    Event,
    Got,
    History,
    Key,
    Listed,
    Opened,
    Record,
    Run,
    Seen,
    Wrote,
)
from tests.proof.sessions import Session, excerpt, sessions

State = tuple[str, str, str]
"""(cluster, uid, stamp)"""


def check(run: Run) -> list[Breach]:
    """Every breach, in the order of the invariants."""
    return [breach for one in INVARIANTS for breach in one(run)]


def _state(seen: Seen) -> State:
    return seen.cluster, seen.uid, seen.stamp


# I1: versions on one watch grow, types fit, nothing is repeated, nothing is missing.


def i1_watches(run: Run) -> list[Breach]:
    """On one watch fleet versions strictly grow, and ADDED, MODIFIED, DELETED fit what was sent before."""
    out: list[Breach] = []
    for history in run.histories:
        out += _i1_order(history, _strict(run))
    return out


def _strict(run: Run) -> bool:
    """Was no member left out or listed anew? Then no state can have been passed over."""
    return not (run.gaps or any(one.disturbed or one.returns for one in run.members))


def _i1_order(history: History, strict: bool) -> Iterator[Breach]:
    """Not strict: a watch may pass over a state that a later one supersedes. If it ends between the two, the one that
    resumes cannot know, and shows a change of what the client never got."""
    watches, last_told = 0, dict[Key, int]()
    held: dict[Key, Seen] = {}
    told: set[Key] | None = None  # after a partial list: what came since; its other objects may be held by nobody
    last = 0
    by_payload = history.scope.startswith(("status.", "spec."))
    for place, record in enumerate(history.records):
        if isinstance(record, Listed) and record.follows:
            held, last = {one.key: one for one in record.items}, record.version
            told = set(held) if record.partial else None
            watches, last_told = 0, {}
            for one in record.items:
                if one.fleet > last:
                    yield _breach("I1", history, place, f"{one} in a list at {last}", one.key)
        elif isinstance(record, Opened):
            watches += 1
            if record.version < last:
                yield _breach("I1", history, place, f"resumed at {record.version}, before {last}")
        elif isinstance(record, Bookmark):
            if record.version < last:
                yield _breach("I1", history, place, f"bookmark {record.version} after {last}")
            last = max(last, record.version)
        elif isinstance(record, Event):
            seen = record.seen
            if seen.fleet <= last:
                yield _breach("I1", history, place, f"{record.type} {seen.fleet} after {last}", seen.key)
            last = max(last, seen.fleet)
            # Nor does it know what matched by other fields on a member that does not tell any more.
            blind = by_payload or seen.key not in held
            resumed = not strict and blind and watches > last_told.get(seen.key, 0 if by_payload else 1)
            last_told[seen.key] = watches
            if resumed:
                pass
            elif told is None or seen.key in told:
                yield from _i1_type(history, place, record, held.get(seen.key))
            else:
                told.add(seen.key)
            if record.type == "DELETED":
                held.pop(seen.key, None)
            else:
                held[seen.key] = seen


def _i1_type(history: History, place: int, event: Event, known: Seen | None) -> Iterator[Breach]:
    seen = event.seen
    if event.type == "ADDED" and known is not None:
        yield _breach("I1", history, place, f"ADDED of an object that is held at {known.fleet}", seen.key)
    elif event.type != "ADDED" and known is None:
        yield _breach("I1", history, place, f"{event.type} of an object that is not held", seen.key)
    elif event.type != "ADDED" and known is not None and known.uid != seen.uid:
        yield _breach("I1", history, place, f"{event.type} of uid {seen.uid}, held is {known.uid}", seen.key)


def i1_nothing_missing(run: Run) -> list[Breach]:
    """What one client of a scope was sent, all that watched over it were: or a later state of that object."""
    strict = _strict(run)
    scopes: dict[str, list[Session]] = defaultdict(list)
    for history in run.histories:
        scopes[history.scope] += sessions(history)
    out: list[Breach] = []
    for whole in scopes.values():
        entries = {event.seen.fleet: event for one in whole for _, event in one.events}
        ordered = sorted(entries)
        rows = [(fleet, entries[fleet].seen.key, entries[fleet]) for fleet in ordered]
        for one in whole:
            out += _missing(one, rows, ordered, strict)
    return out


def _missing(
    session: Session, rows: list[tuple[int, Key, Event]], ordered: list[int], strict: bool
) -> Iterator[Breach]:
    told = {event.seen.fleet for _, event in session.events}
    begin, end = bisect_right(ordered, session.start), bisect_right(ordered, session.end)
    if strict:
        for fleet, _, event in rows[begin:end]:
            if fleet not in told:
                yield _absent(session, event)
        return
    newest = {key: event for _, key, event in rows[begin:end]}
    # What came behind the session's end may be why a state was passed over: it would have followed.
    followed = {key for _, key, _ in rows[end:]}
    for key, event in newest.items():
        if key in followed:
            continue
        held = session.held.get(key)
        gone = event.type == "DELETED"
        if event.seen.fleet not in told and (held is not None if gone else held is None or held.fleet < event.seen.fleet):
            yield _absent(session, event)


def _absent(session: Session, event: Event) -> Breach:
    place = next((at for at, one in session.events if one.seen.fleet > event.seen.fleet), session.first)
    text = f"missing between {session.start} and {session.end}: {event.type} {event.seen}"
    return _breach("I1", session.history, place, text, event.seen.key)


# I2, I3: order and numbers.


def i2_member_order(run: Run) -> list[Breach]:
    """One member's states come in its order: each object's always, all of them while it was never listed anew."""
    versions = {
        (record.cluster, one.uid, one.stamp, one.deleted): one.version
        for record in run.members
        for one in record.states
    }
    disturbed = {record.cluster for record in run.members if record.disturbed or record.returns}
    reset = {record.cluster for record in run.members if record.lives > 1}
    out: list[Breach] = []
    for history in run.histories:
        last: dict[tuple[str, str], int] = {}
        known: set[State] = set()
        for place, record in enumerate(history.records):
            if not isinstance(record, Event):
                if isinstance(record, Listed) and record.follows:
                    last, known = {}, {_state(one) for one in record.items}
                continue
            seen, gone = record.seen, record.type == "DELETED"
            if seen.cluster in reset:
                continue
            # Told by a selector DELETED may mean that the object has left it: no deletion of the member's.
            version = None if gone and history.scope != "all" else versions.get((*_state(seen), gone))
            if version is None or (not gone and _state(seen) in known):
                continue  # sent anew after a gap, or not the member's own word
            known.add(_state(seen))
            for of in (seen.uid, "") if seen.cluster not in disturbed and not run.gaps else (seen.uid,):
                if version < last.get((seen.cluster, of), 0):
                    text = f"member version {version} of {seen.cluster} after {last[seen.cluster, of]}"
                    out.append(_breach("I2", history, place, text, seen.key if of else None))
                last[seen.cluster, of] = max(version, last.get((seen.cluster, of), 0))
    return out


def i3_one_to_one(run: Run) -> list[Breach]:
    """A fleet version stands for one state, everywhere and always; a state has one, unless a gap numbered it anew."""
    states: dict[int, tuple[State, History, int]] = {}
    fleets: dict[State, tuple[int, History, int]] = {}
    returns = _returns(run)
    out: list[Breach] = []
    for history in run.histories:
        for place, record in enumerate(history.records):
            gone = isinstance(record, Event) and record.type == "DELETED"
            for seen in _shown(record):
                state = _state(seen)
                if not seen.stamp:
                    continue  # nobody knows what it was
                # A deletion shows the object's last content under its own number.
                state = (state[0], state[1], "deleted") if gone else state
                known = states.setdefault(seen.fleet, (state, history, place))
                if known[0] != state and not gone and known[0][2] != "deleted":
                    text = f"{seen.fleet} is {state}; for {known[1].client} it was {known[0]}"
                    out.append(_breach("I3", history, place, text, seen.key))
                if gone or run.gaps or seen.cluster in returns:
                    continue
                other = fleets.setdefault(state, (seen.fleet, history, place))
                if other[0] != seen.fleet:
                    text = f"{state} is {seen.fleet}; for {other[1].client} it was {other[0]}"
                    out.append(_breach("I3", history, place, text, seen.key))
    return out


def _returns(run: Run) -> set[str]:
    """Clusters whose objects may be shown anew under new numbers."""
    return {record.cluster for record in run.members if record.returns}


def _shown(record: Record) -> tuple[Seen, ...]:
    """States that a record shows."""
    if isinstance(record, Listed):
        return record.items
    if isinstance(record, Event):
        return (record.seen,)
    if isinstance(record, Got | Wrote) and record.seen is not None:
        return (record.seen,)
    return ()


# I4: list and watch end in exactly the members' state.


def i4_convergence(run: Run) -> list[Breach]:
    """What each client holds in the end is what the members have."""
    out: list[Breach] = []
    for history in run.histories:
        wanted = run.final.get(history.scope)
        whole = list(sessions(history))
        if wanted is None or not whole:
            continue
        last = whole[-1]
        held = {key: (one.uid, one.stamp) for key, one in last.held.items()}
        for key in sorted(wanted.keys() | held.keys()):
            if held.get(key) != wanted.get(key):
                text = f"{key} is {held.get(key)}, the members have {wanted.get(key)}"
                places = [at for at, event in last.events if event.seen.key == key]
                out.append(_breach("I4", history, places[-1] if places else last.first, text, key))
    return out


# I5, I6, I7: time does not run backwards, for everybody and for each client.


def i5_never_backwards(run: Run) -> list[Breach]:
    """A consistent list that began after another answer was complete is not older than that."""
    marks: list[tuple[float, int, str]] = []
    lists: list[tuple[float, int, History, int]] = []
    for history in run.histories:
        for place, record in enumerate(history.records):
            if isinstance(record, Listed) and record.consistent:
                marks.append((record.ended, record.version, f"list of {history.client}"))
                lists.append((record.started, record.version, history, place))
            elif isinstance(record, Wrote | Got) and record.seen is not None:
                marks.append((record.ended, record.seen.fleet, f"answer of {history.client}"))
            elif isinstance(record, Event):
                marks.append((record.at, record.seen.fleet, f"event of {history.client}"))
    marks.sort(key=lambda one: one[0])
    out: list[Breach] = []
    newest, who, at = 0, "", 0
    for started, version, history, place in sorted(lists, key=lambda one: one[0]):
        while at < len(marks) and marks[at][0] < started:
            if marks[at][1] > newest:
                newest, who = marks[at][1:]
            at += 1
        if version < newest:
            out.append(_breach("I5", history, place, f"list at {version}, though {who} had {newest} before it began"))
    return out


def i6_no_older_state(run: Run) -> list[Breach]:
    """A client that saw a state never sees an older one of that object, whichever replica answers."""
    out: list[Breach] = []
    returns = _returns(run)
    for history in run.histories:
        newest: dict[Key, Seen] = {}
        gone: set[str] = set()
        for place, record in enumerate(history.records):
            if isinstance(record, Listed | Got) and not record.consistent:
                continue
            for seen in _shown(record):
                known = newest.get(seen.key)
                if known is not None and seen.fleet < known.fleet:
                    out.append(_breach("I6", history, place, f"{seen.fleet} after {known.fleet}", seen.key))
                elif seen.uid in gone and not (isinstance(record, Event) and record.type == "DELETED"):
                    out.append(_breach("I6", history, place, f"uid {seen.uid} after its deletion", seen.key))
                newest[seen.key] = seen
            told = isinstance(record, Event) and record.type == "DELETED" and history.scope == "all"
            if told and record.seen.cluster not in returns:
                gone.add(record.seen.uid)
    return out


def i7_own_writes(run: Run) -> list[Breach]:
    """What a client wrote is in its next read: that state or a later one, and no 404 unless it was deleted."""
    deleted = {one.uid for record in run.members for one in record.states if one.deleted or record.returns}
    returns = _returns(run)
    out: list[Breach] = []
    for history in run.histories:
        mine: dict[Key, Seen] = {}
        removed: dict[Key, str] = {}
        for place, record in enumerate(history.records):
            if isinstance(record, Wrote) and 200 <= record.code < 300:
                if record.seen is not None:
                    mine[record.key] = record.seen
                    removed.pop(record.key, None)
                else:
                    mine.pop(record.key, None)
                    removed[record.key] = record.uid
            elif isinstance(record, Got) and record.consistent:
                out += _i7(history, place, record.key, record.seen, mine, removed, deleted, returns)
            elif isinstance(record, Listed) and record.consistent:
                items = {one.key: one for one in record.items}
                whole = history.scope == "all" and not record.partial
                keys = [key for key in (*mine, *removed) if whole or key in items]
                for key in keys:
                    out += _i7(history, place, key, items.get(key), mine, removed, deleted, returns)
    return out


def _i7(
    history: History, place: int, key: Key, seen: Seen | None, mine: dict[Key, Seen], removed: dict[Key, str],
    deleted: set[str], returns: set[str],
) -> Iterator[Breach]:  # fmt: skip
    wrote = mine.get(key)
    if wrote is not None and seen is not None and seen.fleet < wrote.fleet:
        yield _breach("I7", history, place, f"read {seen.fleet} after writing {wrote.fleet}", key)
    if wrote is not None and seen is None and wrote.uid not in deleted:
        yield _breach("I7", history, place, f"not there after writing {wrote.fleet}", key)
    if seen is not None and removed.get(key) == seen.uid and seen.cluster not in returns:
        yield _breach("I7", history, place, f"uid {seen.uid} read after deleting it", key)


# I8, I9, I10.


def i8_no_lost_update(run: Run) -> list[Breach]:
    """Every answered increment counts once: no value is won twice, and the sum is right."""
    out: list[Breach] = []
    for counter in run.counters:
        owners: dict[int, str] = {}
        for client, values in counter.won.items():
            for value in values:
                if value in owners:
                    text = f"{counter.key}: {value} was won by {owners[value]} too: an update was lost"
                    out.append(Breach("I8", client, text))
                owners[value] = client
        low = counter.begin + len(owners)
        if not low <= counter.final <= low + counter.unknown:
            text = f"{counter.key} is {counter.final} after {len(owners)} increments and {counter.unknown} unanswered"
            out.append(Breach("I8", ", ".join(counter.won), f"{text}, from {counter.begin}"))
    return out


def i9_nobody_held_up(run: Run) -> list[Breach]:
    """Nobody waits for the slow, and nothing grows without a bound: each figure is within its limit."""
    return [
        Breach("I9", one.what, f"{one.value:g} is above {one.limit:g}") for one in run.measures if one.value > one.limit
    ]


def i10_no_relist(run: Run) -> list[Breach]:
    """No client is told 410 while its version is inside the window."""
    out: list[Breach] = []
    for history in run.histories:
        told = 0.0
        for place, record in enumerate(history.records):
            if isinstance(record, Listed) and record.follows:
                told = record.ended
            elif isinstance(record, Event | Bookmark):
                told = record.at
            elif isinstance(record, Ended) and record.code == 410 and record.at - told < run.window:
                if history.scope.startswith("status."):
                    continue  # such a field is judged on what members still tell of that version
                out.append(_breach("I10", history, place, f"410 {record.at - told:.1f} s after its last version"))
    return out


def _breach(invariant: str, history: History, place: int, text: str, key: Key | None = None) -> Breach:
    return Breach(invariant, history.client, text, excerpt(history, place, key))


INVARIANTS = (
    i1_watches, i1_nothing_missing, i2_member_order, i3_one_to_one, i4_convergence, i5_never_backwards,
    i6_no_older_state, i7_own_writes, i8_no_lost_update, i9_nobody_held_up,
    i10_no_relist,
)  # fmt: skip
