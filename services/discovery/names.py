"""Names of clusters: DNS labels that stay with their source."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from services.common.errors import cut

HOST = "host"
"""How statuses and metrics name the host, beside the names of members: a member of that name would be taken for it."""
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


def is_label(key: str, value: str = "") -> bool:
    """Whether Kubernetes takes `key: value` as a label."""
    return _LABEL_KEY.fullmatch(key) is not None and _LABEL_VALUE.fullmatch(value) is not None


def bad_label(labels: Mapping[str, str]) -> str:
    """Say which of the labels Kubernetes does not take; "" when it takes them all."""
    bad = next((f"{key}={value}" for key, value in labels.items() if not is_label(key, value)), None)
    return f"label {bad[:150]!r} is none that Kubernetes allows" if bad is not None else ""


def is_dns_label(name: str) -> bool:
    """Whether `name` is a DNS label (RFC 1123), as names of clusters are."""
    return _LABEL.fullmatch(name) is not None


def bad_name(name: str) -> str:
    """Say why a cluster cannot have a name; "" when it can."""
    if name == HOST:
        return f"name {name!r}; it stands for the host in statuses and metrics: give the cluster another one"
    if not is_dns_label(name):
        return f"name {cut(name, 80)!r}; allowed: a DNS label (a-z, 0-9, -, at most 63 characters)"
    return ""


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

    @property
    def what(self) -> str:
        """What it is, for people."""
        return f"context {self.context!r}"

    def holder(self, other: Candidate) -> str:
        """Say who has a name that `other` wanted."""
        return f"context {self.context!r} of {'this file' if other.path == self.path else self.path}"


@dataclass(frozen=True, slots=True)
class ObjectCandidate(Candidate):
    """An object of Kubernetes: `path` is its namespace, `context` its name."""

    kind: str = ""
    key: str = ""
    """Where in it the kubeconfig is."""
    qualified: bool = False
    """Whether the namespace is part of every name."""

    @property
    def source(self) -> str:
        """What identifies it over restarts; no source is the beginning of another."""
        return f"{self.what}#{self.key}"

    @property
    def short(self) -> str:
        """Its name while no other object has it."""
        return dns_safe(f"{self.path}-{self.context}" if self.qualified else self.context)

    @property
    def long(self) -> str:
        """Its name when another object has the short one."""
        mark = hashlib.sha256(f"{self.path}/{self.context}".encode()).hexdigest()[:8]
        return f"{dns_safe(f'{self.path}-{self.context}')[:54].rstrip('-')}-{mark}"

    @property
    def what(self) -> str:
        """What it is, for people."""
        return f"{self.kind} {self.path}/{self.context}"

    def holder(self, other: Candidate) -> str:
        """Say who has a name that `other` wanted."""
        return self.what


@dataclass(frozen=True, slots=True)
class NamedCandidate(Candidate):
    """A cluster that another program names: `path` says whose name it is, `context` is the name."""

    @property
    def long(self) -> str:
        """Its name when another has the short one."""
        return f"{self.short[:54].rstrip('-')}-{hashlib.sha256(self.context.encode()).hexdigest()[:8]}"

    @property
    def what(self) -> str:
        """What it is, for people."""
        return f"{self.path} {self.context}"

    @property
    def source(self) -> str:
        """What identifies it over restarts; no source is the beginning of another."""
        return f"{self.what}#"

    def holder(self, other: Candidate) -> str:
        """Say who has a name that `other` wanted."""
        return self.what


C = TypeVar("C", bound=Candidate)


def assign(
    candidates: Sequence[C], holders: Mapping[str, str]
) -> tuple[dict[str, C], list[tuple[C, str]]]:
    """Give each candidate a name; return {name: candidate} and (candidate, what is odd about its name).

    `holders` says which source had a name before: it keeps it, so that a file added later renames nobody.
    Others take the short name, else the long one (file and context); who gets neither is only reported.
    """
    names: dict[str, C] = {}
    notes: list[tuple[C, str]] = []
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
        if candidate.short not in names and candidate.short != HOST:
            names[candidate.short] = candidate
        elif candidate.long not in names:
            names[candidate.long] = candidate
            notes.append((candidate, _renamed(candidate, names.get(candidate.short))))
        else:
            other = names[candidate.long]
            notes.append((
                candidate,
                f"{candidate.what}: the names {candidate.short!r} and {candidate.long!r} are taken "
                f"(by {other.path}); it is left out, rename it",
            ))  # fmt: skip
    return names, notes


def _renamed(candidate: Candidate, other: Candidate | None) -> str:
    return (
        f"{candidate.what}: the name {candidate.short!r} is taken by {other.holder(candidate) if other else 'the host'}; "
        f"it is shown as {candidate.long!r}"
    )
