"""Tables for people, JSON and YAML for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

console = Console()


class Format(StrEnum):
    """How to print."""

    table = "table"
    json = "json"
    yaml = "yaml"


def show(data: Any, form: Format, columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
    """Print `data` as it is, or its rows as a table; `empty` says what having no rows means."""
    if form is Format.json:
        print(json.dumps(data, indent=2))
    elif form is Format.yaml:
        print(yaml.safe_dump(data, sort_keys=False), end="")
    elif not rows:
        say(empty)
    else:
        print(table(columns, rows))


def say(text: str, style: str = "") -> None:
    """One line, whole and as it is: never folded, brackets and all."""
    console.print(Text(text, style), soft_wrap=True)


def page(text: str) -> Text:
    """What is shown live: lines that the terminal is too narrow for are cut, not folded."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as kubectl prints them: never folded, so that lines can be cut and searched."""
    widths = [max(len(line[at]) for line in (columns, *rows)) for at in range(len(columns))]
    lines = [
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (columns, *rows)
    ]
    return "\n".join(lines)


def condition(obj: dict[str, Any], type_: str) -> dict[str, Any]:
    """One condition of an object; {} when it is not there."""
    for one in (obj.get("status") or {}).get("conditions") or []:
        if one.get("type") == type_:
            found: dict[str, Any] = one
            return found
    return {}


def age(stamp: str | None) -> str:
    """How long ago, as kubectl prints it."""
    if not stamp:
        return "-"
    then = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    seconds = int((datetime.now(UTC) - then).total_seconds())
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 7200:
        return f"{seconds // 60}m"
    return f"{seconds // 3600}h" if seconds < 172800 else f"{seconds // 86400}d"
