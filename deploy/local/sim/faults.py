"""How a simulated cluster misbehaves: rules on requests, decided by the cluster's own random source.

A rule names what it meets (verbs, resources), how often (`chance`), how many times (`count`), and what happens:
  delay     the answer comes `seconds` later
  refuse    the connection is closed at once
  error     the answer is `status`, with a Retry-After where one is usual
  hang      the connection stays open and nothing comes, until the rule is lifted
  garbage   the answer is not one of an API server; `garbage` says which: html, half, version, endless, huge
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("delay", "refuse", "error", "hang", "garbage")
GARBAGE = ("html", "half", "version", "endless", "huge")


@dataclass
class Rule:
    """One way to misbehave. Empty `verbs` and `resources` meet every request, `*` likewise."""

    kind: str
    verbs: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    chance: float = 1.0
    count: int | None = None
    seconds: float = 0.0
    status: int = 503
    garbage: str = "html"
    lifted: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r}: allowed are {', '.join(KINDS)}")
        if self.garbage not in GARBAGE:
            raise ValueError(f"garbage {self.garbage!r}: allowed are {', '.join(GARBAGE)}")
        if not 0 <= self.chance <= 1 or self.seconds < 0:
            raise ValueError("chance is from 0 to 1, seconds not negative")

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Rule:
        """From JSON. Raises ValueError for unknown keys and bad values."""
        allowed = {"kind", "verbs", "resources", "chance", "count", "seconds", "status", "garbage"}
        unknown = sorted(set(given) - allowed)
        if unknown or "kind" not in given:
            raise ValueError(f"unknown: {', '.join(unknown)}" if unknown else "kind is missing")
        values = dict(given)
        for name in ("verbs", "resources"):
            values[name] = tuple(values.get(name) or ())
        return cls(**values)

    def meets(self, verb: str, resource: str) -> bool:
        return (not self.verbs or verb in self.verbs) and (not self.resources or resource in self.resources)


class Faults:
    """The rules of one cluster, in order; the first that meets a request decides."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self.rules: list[Rule] = []
        self.met = 0
        """How many requests a rule decided."""

    def add(self, rule: Rule) -> Rule:
        self.rules.append(rule)
        return rule

    def lift(self, rule: Rule | None = None) -> None:
        """Takes a rule back, or all of them; what hangs by it is let go."""
        for one in list(self.rules) if rule is None else [rule]:
            one.lifted = True
            if one in self.rules:
                self.rules.remove(one)

    def decide(self, verb: str, resource: str) -> Rule | None:
        """The rule that this request meets; None when it is to be answered properly."""
        for rule in self.rules:
            if not rule.meets(verb, resource):
                continue
            if rule.chance < 1 and self._random.random() >= rule.chance:
                continue
            if rule.count is not None:
                rule.count -= 1
                if rule.count <= 0:
                    self.rules.remove(rule)
            self.met += 1
            return rule
        return None


_HTML = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>\n"
_HUGE_BYTES = 10 << 20


def spoil(body: bytes, garbage: str) -> bytes:
    """What is sent in place of a proper body (or watch line) for html, half, version and huge."""
    if garbage == "html":
        return _HTML
    if garbage == "half":
        return body[: max(1, len(body) // 2)]
    if garbage == "version":
        return body.replace(b'"resourceVersion":"', b'"resourceVersion":"x')
    # An annotation that is far beyond what an API server stores.
    return body.replace(
        b'"metadata":{', b'"metadata":{"annotations":{"huge":"' + b"x" * _HUGE_BYTES + b'"},', 1
    )
