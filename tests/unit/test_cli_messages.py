"""Lines for people: whole, said once, and with the next step."""

from __future__ import annotations

from typing import Any

import pytest

from reclock.cli.api import GROUP, CliError, _decode
from reclock.cli.explain import _head
from services.aggregator.reads.scope import LeftOut


def test_a_long_condition_stays_on_one_line(capsys: Any) -> None:
    message = "placed again: left east: taint reclock.dev/maintenance:NoExecute is not tolerated [by the policy]"
    _head({"status": {"conditions": [{"type": "Evicted", "status": "False", "message": message}]}})
    assert f"Evicted=False: {message}\n" in capsys.readouterr().out


def test_a_cluster_that_is_not_there_says_where_to_look() -> None:
    with pytest.raises(CliError, match='"nope" not found; the fleet\'s clusters: reclock clusters'):
        _decode(404, '{"message": "clusters.reclock.dev \\"nope\\" not found"}', f"{GROUP}/clusters/nope")
    with pytest.raises(CliError, match=r"not found$"):
        _decode(404, '{"message": "x not found"}', f"{GROUP}/workloads/x")


def test_a_cluster_that_is_left_out_is_named_once() -> None:
    left = LeftOut(away={"east": "cluster east: no answer to a list within 5 s"}, denied={"west": "forbidden"})
    assert left.warnings() == ["cluster east is left out: no answer to a list within 5 s", "cluster west is left out: forbidden"]
