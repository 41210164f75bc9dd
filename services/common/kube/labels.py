"""Label selectors: Kubernetes' grammar, its words for mistakes, and matching."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from services.common.errors import bad_request

NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
PREFIX_PART = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
TOKEN = re.compile(r"\s*(?:(!=|==|=|!|<|>|\(|\)|,)|([^\s=!(),<>]+))")
NAME_HINT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric"
    " character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is"
    " '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_HINT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must"
    " start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used"
    " for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
BINARY = "=, !=, ==, in, notin, >, <"  # as Kubernetes lists them


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term of a label selector. `operator`: in, notin, exists, !, gt, lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Does an object with these labels satisfy the term?"""
        value = labels.get(self.key)
        if self.operator == "in":
            return value is not None and value in self.values
        if self.operator == "notin":
            return value is None or value not in self.values
        if self.operator == "exists":
            return value is not None
        if self.operator == "!":
            return value is None
        number = integer(value)
        bound = integer(next(iter(self.values)))
        if number is None or bound is None:
            return False
        return number > bound if self.operator == "gt" else number < bound


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold; without any, everything matches."""

    text: str = ""
    requirements: tuple[Requirement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Does an object with these labels match?"""
        return all(requirement.matches(labels) for requirement in self.requirements)


def integer(text: str | None) -> int | None:
    """A decimal int64, None when it is none."""
    if text is None or not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def parse_labels(text: str) -> LabelSelector:
    """Parse a `labelSelector`; StatusError 400 in Kubernetes' words."""
    return LabelSelector(text, LabelParser(text).parse())


class LabelParser:
    """Recursive descent over the tokens of one selector. Quadratic in nothing: each token is read once."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []  # (symbol or "", identifier or symbol)
        at, text = 0, text.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None:  # pragma: no cover - the two branches of TOKEN cover every character
                raise bad_request(f"found '{text[at]}', expected: identifier")
            at = found.end()
            self.tokens.append((found.group(1) or "", found.group(1) or found.group(2)))
        self.at = 0

    def peek(self) -> tuple[str, str]:
        """The next token: (symbol, text); an identifier has symbol "id", the end has "end"."""
        if self.at >= len(self.tokens):
            return "end", ""
        symbol, text = self.tokens[self.at]
        return symbol or "id", text

    def take(self) -> tuple[str, str]:
        """The next token, consumed."""
        token = self.peek()
        self.at += 1
        return token

    def parse(self) -> tuple[Requirement, ...]:
        """The requirements in the selector's order."""
        out: list[Requirement] = []
        while True:
            symbol, text = self.peek()
            if symbol == "end":
                return tuple(out)
            if symbol not in ("id", "!"):
                raise bad_request(f"found '{text}', expected: !, identifier, or 'end of string'")
            try:
                out.append(self.requirement())
            except ValueError as error:
                raise bad_request(f"unable to parse requirement: {error}") from error
            symbol, text = self.take()
            if symbol == "end":
                return tuple(out)
            if symbol != ",":
                raise bad_request(f"found '{text}', expected: ',' or 'end of string'")
            if self.peek()[0] not in ("id", "!"):
                raise bad_request(f"found '{self.peek()[1]}', expected: identifier after ','")

    def requirement(self) -> Requirement:
        """One term; ValueError with Kubernetes' words."""
        symbol, key = self.take()
        absent = symbol == "!"
        if absent:
            symbol, key = self.take()
        if symbol != "id":
            raise ValueError(f"found '{key}', expected: identifier")
        check_key(key)
        if self.peek()[0] in ("end", ","):
            return Requirement(key, "!" if absent else "exists")
        symbol, text = self.take()
        if symbol == "id" and text in ("in", "notin"):
            values = self.values()
            operator = text
        elif symbol in ("=", "==", "!=", ">", "<"):
            values = {self.exact_value()}
            operator = {"=": "in", "==": "in", "!=": "notin", ">": "gt", "<": "lt"}[symbol]
        else:
            raise ValueError(f"found '{text}', expected: {BINARY}")
        for value in values:
            check_value(key, value)
        if operator in ("gt", "lt") and integer(next(iter(values))) is None:
            hint = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise ValueError(f'values[0]: Invalid value: "{next(iter(values))}": {hint}')
        return Requirement(key, operator, frozenset(values))

    def exact_value(self) -> str:
        """The value behind = and its like; empty at a comma or the end."""
        symbol, text = self.peek()
        if symbol in ("end", ","):
            return ""
        self.take()
        if symbol != "id":
            raise ValueError(f"found '{text}', expected: identifier")
        return text

    def values(self) -> set[str]:
        """`(a, b, )`: an empty place is the empty value."""
        symbol, text = self.take()
        if symbol != "(":
            raise ValueError(f"found '{text}' expected: '('")
        out: set[str] = set()
        while True:
            symbol, text = self.take()
            value = ""
            if symbol == "id":
                value = text
                symbol, text = self.take()
            elif symbol not in (",", ")"):
                raise ValueError(f"found '{text}', expected: ',', ')' or identifier")
            out.add(value)
            if symbol == ")":
                return out
            if symbol != ",":
                raise ValueError(f"found '{text}', expected: ',' or ')'")


def check_key(key: str) -> None:
    """ValueError unless `key` is a qualified name, optionally with a DNS prefix."""
    *prefix, name = key.split("/")
    problems = []
    if len(prefix) > 1:
        problems.append(
            f"a qualified name {NAME_HINT} with an optional DNS subdomain prefix and '/'"
            " (e.g. 'example.com/MyName')"
        )
    else:
        if prefix and not (len(prefix[0]) <= 253 and PREFIX_PART.fullmatch(prefix[0])):
            problems.append("prefix part a lowercase RFC 1123 subdomain" if prefix[0] else
                            "prefix part must be non-empty")  # fmt: skip
        if not name:
            problems.append("name part must be non-empty")
        elif len(name) > 63:
            problems.append("name part must be no more than 63 bytes")
        if not NAME_PART.fullmatch(name):
            problems.append(f"name part {NAME_HINT}")
    if problems:
        raise ValueError(f'<nil>: Invalid value: "{key}": {"; ".join(problems)}')


def check_value(key: str, value: str) -> None:
    """ValueError unless `value` may be a label's."""
    problem = ""
    if len(value) > 63:
        problem = "must be no more than 63 bytes"
    elif value and not NAME_PART.fullmatch(value):
        problem = VALUE_HINT
    if problem:
        raise ValueError(f'values[0][{key}]: Invalid value: "{value}": {problem}')
