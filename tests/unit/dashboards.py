"""The Grafana dashboards of `deploy/grafana`: their panels, and the metrics and labels that their queries name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser

FILES = sorted((Path(__file__).resolve().parents[2] / "deploy" / "grafana").glob("*.json"))
SUFFIXES = ("_bucket", "_sum", "_count")


class Query(NamedTuple):
    """One query of a panel, or of a variable (then without a legend)."""

    place: str
    expression: str
    legend: str = ""


class Named(NamedTuple):
    """A metric of a query, with the labels that it is asked for by."""

    metric: str
    labels: frozenset[str]


def load(file: Path) -> dict[str, Any]:
    """The dashboard."""
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels but the rows."""
    return (one for one in board["panels"] if one["type"] != "row")


def queries(board: dict[str, Any]) -> list[Query]:
    """Those of panels and variables, with what Grafana fills in."""
    found = [
        Query(panel["title"], target["expr"].replace("$__rate_interval", "5m"), target["legendFormat"])
        for panel in panels(board) for target in panel["targets"]
    ]  # fmt: skip
    for one in board["templating"]["list"]:
        if one["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", one["query"]["query"])
            assert asked, one
            found.append(Query(f"${one['name']}", f"sum by ({asked[2]}) ({asked[1]})"))
    return found


def named(expression: str) -> list[Named]:
    """The metrics of an expression; ValueError where it is none. Labels of every `by` count for each of them."""
    parsed = promql_parser.parse(expression)
    selectors: list[Any] = []
    grouped: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            selectors.append(node)
        elif isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            grouped.update(node.modifier.labels)

    promql_parser.walk(parsed, visit)
    return [
        Named(one.name, frozenset({*grouped, *(matcher.name for matcher in one.matchers.matchers)})) for one in selectors
    ]  # fmt: skip


def family(metric: str) -> str:
    """The metric that a series of a histogram or summary belongs to."""
    for suffix in SUFFIXES:
        if metric.endswith(suffix):
            return metric.removesuffix(suffix)
    return metric
