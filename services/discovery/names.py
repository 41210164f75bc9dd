"""Names of clusters: DNS labels that stay with their source."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def is_dns_label(name: str) -> bool:
    """Whether `name` is a DNS label (RFC 1123), as names of clusters are."""
    return _LABEL.fullmatch(name) is not None


def dns_safe(text: str) -> str:
    """Return a DNS label made from `text`; what is lost by cutting is made up for by a digest."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name:
        return f"cluster-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    if len(name) > 63:
        return f"{name[:54].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return name


@dataclass(frozen=True, slots=True)
class Candidate:
    """A context of a file, before it has a name."""

    path: str
    context: str

    @property
    def source(self) -> str:
        """What identifies it over restarts."""
        return f"{self.path}#{self.context}"

    @property
    def short(self) -> str:
        """Its name while no other context has it."""
        return dns_safe(self.context)

    @property
    def long(self) -> str:
        """Its name when another context has the short one."""
        return dns_safe(f"{Path(self.path).stem}-{self.context}")


def assign(
    candidates: Sequence[Candidate], holders: Mapping[str, str]
) -> tuple[dict[str, Candidate], list[tuple[Candidate, str]]]:
    """Give each candidate a name; return {name: candidate} and (candidate, what is odd about its name).

    `holders` says which source had a name before: it keeps it, so that a file added later renames nobody.
    Others take the context's name, else file and context; who gets neither is only reported.
    """
    names: dict[str, Candidate] = {}
    notes: list[tuple[Candidate, str]] = []
    by_source = {candidate.source: candidate for candidate in candidates}
    for name, source in holders.items():
        held = by_source.get(source)
        if held is not None and name in (held.short, held.long):
            names[name] = held
            del by_source[source]
    kept = set(names.values())
    for candidate in candidates:
        if candidate in kept:
            if names.get(candidate.long) is candidate and candidate.short in names:
                notes.append((candidate, _renamed(candidate, names[candidate.short])))
            continue
        if candidate.short not in names:
            names[candidate.short] = candidate
        elif candidate.long not in names:
            names[candidate.long] = candidate
            notes.append((candidate, _renamed(candidate, names[candidate.short])))
        else:
            other = names[candidate.long]
            notes.append((
                candidate,
                f"context {candidate.context!r}: the names {candidate.short!r} and {candidate.long!r} are taken "
                f"(by {other.path}); it is left out, rename the context",
            ))  # fmt: skip
    return names, notes


def _renamed(candidate: Candidate, other: Candidate) -> str:
    where = "this file" if other.path == candidate.path else other.path
    return (
        f"context {candidate.context!r}: the name {candidate.short!r} is taken by context {other.context!r} of "
        f"{where}; it is shown as {candidate.long!r}"
    )
