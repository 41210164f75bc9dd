"""Field selectors: Kubernetes' grammar, its words for mistakes, and matching."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from services.common.errors import bad_request


@dataclass(frozen=True, slots=True)
class FieldTerm:
    """One term of a field selector."""

    field: str
    value: str
    equal: bool = True

    def text(self) -> str:
        """As in a query, escaped."""
        value = re.sub(r"([\\,=])", r"\\\1", self.value)
        return f"{self.field}{'=' if self.equal else '!='}{value}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """All terms must hold."""

    terms: tuple[FieldTerm, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    @property
    def text(self) -> str:
        """As in a query."""
        return ",".join(term.text() for term in self.terms)

    def exact(self, field: str) -> str | None:
        """The one value that `field` must have, None when it is free."""
        for term in self.terms:
            if term.field == field and term.equal:
                return term.value
        return None

    def matches(self, values: Mapping[str, str]) -> bool:
        """`values` of every field named by a term; absent ones count as empty."""
        return all((values.get(term.field, "") == term.value) is term.equal for term in self.terms)

    @property
    def on_names(self) -> FieldSelector:
        """The terms that a marker can answer."""
        return FieldSelector(tuple(t for t in self.terms if t.field in NAME_FIELDS))

    @property
    def on_payload(self) -> FieldSelector:
        """The terms that need the object."""
        return FieldSelector(tuple(t for t in self.terms if t.field not in NAME_FIELDS))


NAME_FIELDS = ("metadata.name", "metadata.namespace")


def parse_fields(text: str) -> FieldSelector:
    """Parse a `fieldSelector`; StatusError 400 in Kubernetes' words."""
    terms = []
    for part in sorted(split_terms(text)):
        if not part:
            continue
        found = re.match(r"(.*?)(!=|==|=)(.*)", part, re.DOTALL)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        field, operator, raw = found.groups()
        value = unescape(raw)
        if field or value:
            terms.append(FieldTerm(field, value, operator != "!="))
    return FieldSelector(tuple(terms))


def split_terms(text: str) -> list[str]:
    """Split at commas that no backslash precedes."""
    return re.findall(r"(?:\\.|[^,\\]|\\$)+", text, re.DOTALL)


def unescape(raw: str) -> str:
    r"""Turn `\\`, `\,` and `\=` into the characters; 400 for others and for bare `,` and `=`."""
    out, escaped = [], False
    for char in raw:
        if escaped:
            if char not in "\\,=":
                raise bad_request(f"invalid field selector: invalid escape sequence: \\{char}")
            out.append(char)
            escaped = False
        elif char == "\\":
            escaped = True
        elif char in ",=":
            raise bad_request(f"invalid field selector: unescaped character in value: {ord(char)}")
        else:
            out.append(char)
    if escaped:
        raise bad_request("invalid field selector: invalid escape sequence: \\")
    return "".join(out)
