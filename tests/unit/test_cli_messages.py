"""Lines for people: whole, said once, and with the next step."""

from __future__ import annotations

from typing import Any

import pytest

from reclock.cli.api import GROUP, CliError, _decode
from reclock.cli.explain import COLUMNS, _head, rows
from services.aggregator.reads.scope import LeftOut

WEB: dict[str, Any] = {"metadata": {"namespace": "ns", "name": "deployment-web"}, "spec": {"owner": {"kind": "Deployment", "name": "web"}}}


def test_a_long_condition_stays_on_one_line(capsys: Any) -> None:
    message = "placed again: left east: taint reclock.dev/maintenance:NoExecute is not tolerated [by the policy]"
    status = {"conditions": [{"type": "Evicted", "status": "False", "message": message}]}
    _head({**WEB, "status": status})
    said = capsys.readouterr().out
    assert f"Evicted=False: {message}\n" in said and said.startswith("deployment/web (ns): placed nowhere\n")


def test_explain_says_where_it_is_and_how_each_copy_is_doing(capsys: Any) -> None:
    placed = {"clusters": [{"name": "east", "replicas": 2}, {"name": "west", "replicas": 3}]}
    copies = [
        {"cluster": "east", "state": "Waiting", "message": "the cluster is not reachable"},
        {"cluster": "gone", "state": "LeftBehind", "message": "the cluster has left the fleet"},
    ]
    workload = {**WEB, "status": {"placement": placed, "copies": copies}}
    _head(workload)
    assert capsys.readouterr().out.startswith("deployment/web (ns): east 2, west 3\n")
    verdicts = [{"cluster": "west", "replicas": 3, "eligible": True, "message": "room"},
                {"cluster": "east", "replicas": 2, "filter": "Reachable", "message": "no answer"}]  # fmt: skip
    found = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows(workload, verdicts)}
    assert list(found) == ["west", "east", "gone"]
    assert (found["west"]["COPY"], found["west"]["WHY"]) == ("-", "room")
    assert (found["east"]["COPY"], found["east"]["WHY"]) == ("Waiting", "no answer; the cluster is not reachable")
    assert found["gone"]["COPY"] == "LeftBehind"


def test_a_cluster_that_is_not_there_says_where_to_look() -> None:
    with pytest.raises(CliError, match='"nope" not found; the fleet\'s clusters: reclock clusters'):
        _decode(404, '{"message": "clusters.reclock.dev \\"nope\\" not found"}', f"{GROUP}/clusters/nope")
    with pytest.raises(CliError, match=r"not found$"):
        _decode(404, '{"message": "x not found"}', f"{GROUP}/workloads/x")


def test_a_cluster_that_is_left_out_is_named_once() -> None:
    left = LeftOut(away={"east": "cluster east: no answer to a list within 5 s"}, denied={"west": "forbidden"})
    assert left.warnings() == ["cluster east is left out: no answer to a list within 5 s", "cluster west is left out: forbidden"]
