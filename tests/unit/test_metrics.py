"""Every metric is in docs/metrics.md, and the dashboards ask for metrics and labels that there are."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

import services
from _fastpath.fair_queue import FairQueue
from services.aggregator.clock.member_metrics import MemberMetrics
from services.aggregator.clock.tally import Tally
from services.reconciler.metrics import QueueMetrics
from services.reconciler.spreads import spreads
from tests.unit import dashboards
from tests.unit.dashboards import FILES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


class Known(NamedTuple):
    """A metric as its page has it."""

    type: str
    labels: tuple[str, ...]


def collected(collector: Collector) -> dict[str, Known]:
    out = {}
    for one in collector.collect():
        labels = tuple(label for label in one.samples[0].labels if label != "le")
        out[f"{one.name}_total" if one.type == "counter" else one.name] = Known(one.type, labels)
    return out


@cache
def known() -> dict[str, Known]:
    """All that the services' code makes, whether it has a value yet or not."""
    for module in pkgutil.walk_packages(services.__path__, "services."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    out: dict[str, Known] = {}
    for one in set(REGISTRY._collector_to_names):
        if isinstance(one, MetricWrapperBase) and one._name.startswith("reclock_"):
            name = f"{one._name}_total" if one._type == "counter" else one._name
            out[name] = Known(one._type, tuple(one._labelnames))
    clock: Any = SimpleNamespace(
        tally=Tally(), state=SimpleNamespace(live={}, gaps={}), members={"east": None}, sequencer=None
    )
    queue = FairQueue()
    queue.engage("east")
    queue.add("east", "a/b")
    item = queue.get_nowait()
    assert item is not None
    queue.done(item)
    rows = [("hello", row) for row in queue.stats()]
    queues = QueueMetrics(lambda: rows, lambda: spreads("hello", queue))
    return out | collected(MemberMetrics(lambda: {"pods": clock})) | collected(queues)


def test_every_metric_is_documented_as_it_is() -> None:
    rows = re.findall(r"^\| `(reclock_\w+)` \| (\w+) \| ([^|]*) \| [^|]{10,} \|$", PAGE.read_text(), re.MULTILINE)
    said = {name: Known(type_, tuple(re.findall(r"`(\w+)`", labels))) for name, type_, labels in rows}
    assert len(said) == len(rows), "each once"
    assert said == known(), "docs/metrics.md has a row for each metric: name, type, labels, what it is"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_is_one_that_grafana_loads(file: Path) -> None:
    board = dashboards.load(file)
    assert re.fullmatch(r"[\w-]{1,40}", board["uid"]) and board["title"] and board["schemaVersion"] == 39
    assert "id" not in board, "Grafana gives it one"
    variables = {one["name"] for one in board["templating"]["list"]}
    assert len({one["id"] for one in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for one in board["panels"]:
        at = one["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, f"{one['title']} lies on another panel"
        taken |= cells
    for panel in dashboards.panels(board):
        assert panel["type"] in ("timeseries", "stat") and panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables, f"{panel['title']}: {used - variables} is no variable"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_queries_parse_and_name_what_there_is(file: Path) -> None:
    found = dashboards.queries(dashboards.load(file))
    assert len(found) > 5
    for place, expression, legend in found:
        asked = dashboards.named(expression)
        assert asked, f"{place}: no metric"
        labels: set[str] = set()
        for metric, wanted in asked:
            there = known().get(dashboards.family(metric))
            assert there is not None, f"{place}: no service exports {metric}"
            unknown = wanted - {*there.labels, "le"}
            assert not unknown, f"{place}: {metric} has no label {unknown}"
            labels |= {*there.labels}
        assert set(re.findall(r"{{(\w+)}}", legend)) <= labels, f"{place}: {legend}"


def test_the_config_map_has_every_dashboard() -> None:
    [made] = yaml.safe_load((FILES[0].parent / "kustomization.yaml").read_text())["configMapGenerator"]
    assert made["files"] == [file.name for file in FILES]


def test_what_is_no_query_is_found_out() -> None:
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        dashboards.named("sum by (a (x)")
    [one] = dashboards.named('sum by (a) (rate(x_bucket{b="c"}[5m]))')
    assert one == ("x_bucket", {"a", "b"}) and dashboards.family(one.metric) == "x"
