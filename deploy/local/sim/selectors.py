"""Label and field selectors as kube-apiserver parses and refuses them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deploy.local.sim.errors import bad_request

_TOKEN = re.compile(r"\s*(==|!=|=|!|\(|\)|,|<|>|[^\s=!(),<>]+)")
_NAME = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
_PREFIX = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_OPERATORS = "in,notin,=,==,!=,gt,lt"
_BINARY = "=, !=, ==, in, notin, >, <"
_NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


@dataclass(frozen=True)
class Requirement:
    """One term. `operator`: in, notin, exists, !, gt, lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        if self.operator == "in":
            return value is not None and value in self.values
        if self.operator == "notin":
            return value is None or value not in self.values
        if self.operator == "exists":
            return value is not None
        if self.operator == "!":
            return value is None
        try:
            number, bound = int(value or ""), int(next(iter(self.values)))
        except ValueError:
            return False
        return number > bound if self.operator == "gt" else number < bound


LabelSelector = tuple[Requirement, ...]


def matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """True when every requirement holds; an empty selector takes everything."""
    return all(requirement.matches(labels) for requirement in selector)


def parse_labels(text: str) -> LabelSelector:
    """Raises Refused (400) with the API server's text."""
    return tuple(_Parser(text).run()) if text.strip() else ()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._at = 0

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def run(self) -> list[Requirement]:
        found = []
        while True:
            token = self._peek()
            if token != "!" and not _is_word(token):
                raise bad_request(f"found '{token}', expected: !, identifier, or 'end of string'")
            found.append(self._requirement())
            token = self._next()
            if not token:
                return found
            if token != ",":
                raise bad_request(f"found '{token}', expected: ',' or 'end of string'")
            if self._peek() != "!" and not _is_word(self._peek()):
                raise bad_request(f"found '{self._peek()}', expected: identifier after ','")

    def _requirement(self) -> Requirement:
        negated = self._peek() == "!"
        if negated:
            self._next()
        key = self._next()
        if not _is_word(key):
            raise _unparsed(f"found '{key}', expected: identifier")
        _check_key(key)
        if negated or self._peek() in ("", ","):
            return Requirement(key, "!" if negated else "exists")
        return self._binary(key)

    def _binary(self, key: str) -> Requirement:
        operator = self._next()
        if operator in ("in", "notin"):
            return Requirement(key, operator, frozenset(self._values(key)))
        if operator in ("=", "==", "!="):
            value = "" if self._peek() in ("", ",") else self._next()
            _check_value(key, value)
            return Requirement(key, "notin" if operator == "!=" else "in", frozenset([value]))
        if operator in (">", "<"):
            value = self._next()
            if not re.fullmatch(r"-?\d+", value):
                raise _unparsed(
                    f"values[0]: Invalid value: \"{value}\": for 'Gt', 'Lt' operators, the value must be an integer"
                )
            return Requirement(key, "gt" if operator == ">" else "lt", frozenset([value]))
        raise _unparsed(f"found '{operator}', expected: {_BINARY}")

    def _values(self, key: str) -> list[str]:
        token = self._next()
        if token != "(":
            raise _unparsed(f"found '{token}' expected: '('")
        found = []
        while True:
            token = self._next()
            if token in (",", ")"):
                value = ""
                self._at -= 1
            elif _is_word(token):
                value = token
            else:
                raise _unparsed(f"found '{token}', expected: ',', ')' or identifier")
            _check_value(key, value)
            found.append(value)
            token = self._next()
            if token == ")":
                return found
            if token != ",":
                raise _unparsed(f"found '{token}', expected: ',' or ')'")


def _is_word(token: str) -> bool:
    return bool(token) and token not in ("=", "==", "!=", "!", "(", ")", ",", "<", ">")


def _unparsed(why: str) -> Exception:
    return bad_request(f"unable to parse requirement: {why}")


def _check_key(key: str) -> None:
    prefix, _, name = key.rpartition("/")
    if not _NAME.match(name) or len(name) > 63 or ("/" in key and not _PREFIX.match(prefix)):
        raise _unparsed(f'<nil>: Invalid value: "{key}": {_NAME_RULE}')


def _check_value(key: str, value: str) -> None:
    if value and (not _NAME.match(value) or len(value) > 63):
        raise _unparsed(f'values[0][{key}]: Invalid value: "{value}": {_VALUE_RULE}')


#: Says what a field of an object holds; raises Refused for a field that cannot be selected on.
FieldCheck = Callable[[str], None]


@dataclass(frozen=True)
class FieldTerm:
    """`field=value` or, negated, `field!=value`."""

    field: str
    value: str
    negated: bool = False


FieldSelector = tuple[FieldTerm, ...]


def parse_fields(text: str, check: FieldCheck) -> FieldSelector:
    """Raises Refused (400): what cannot be understood, or what `check` refuses."""
    found = []
    for part in (part for part in _split_fields(text) if part):
        match = re.match(r"([^=!]*)(==|!=|=)(.*)", part)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        field, operator, value = match.groups()
        check(field)
        found.append(FieldTerm(field, re.sub(r"\\(.)", r"\1", value), operator == "!="))
    return tuple(found)


def _split_fields(text: str) -> list[str]:
    return re.split(r"(?<!\\),", text)


def exact(selector: FieldSelector, field: str) -> str | None:
    """The one value that the selector allows for `field`; None when it allows several."""
    for term in selector:
        if term.field == field and not term.negated:
            return term.value
    return None
