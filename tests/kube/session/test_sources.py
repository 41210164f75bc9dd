"""Kubeconfigs that are no good: the fleet runs on, and `reclock clusters` says what is wrong."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kube.session.test_placement import reclock
from tests.kube.session.tools import RunningFleet, eventually


@pytest.fixture
def dropped(fleet: RunningFleet) -> Iterator[Path]:
    """A file among the members' kubeconfigs, taken away afterwards."""
    path = fleet.layout.members / "dropped.kubeconfig"
    yield path
    path.unlink(missing_ok=True)
    eventually(lambda: "dropped" not in fleet.kubectl("get", "clusters"), 60)


def of_east(fleet: RunningFleet, **cluster: Any) -> str:
    """East's kubeconfig under the name `dropped`, with changed fields of the cluster."""
    config = yaml.safe_load((fleet.layout.members / "east.kubeconfig").read_text())
    config["contexts"][0]["name"] = config["current-context"] = "dropped"
    config["clusters"][0]["cluster"].update(cluster)
    return str(yaml.safe_dump(config))


def told(fleet: RunningFleet) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(reclock(fleet, "clusters", "-o", "json"))
    return answer


def reasons(fleet: RunningFleet) -> str:
    found = [one for one in told(fleet)["clusters"] if one["metadata"]["name"] == "dropped"]
    return json.dumps(found[0].get("status", {}).get("conditions", [])) if found else ""


def test_a_file_that_is_no_kubeconfig(fleet: RunningFleet, dropped: Path) -> None:
    dropped.write_text("apiVersion: v1\nkind: Config\nclusters: [")
    eventually(lambda: any("dropped" in one["source"] for one in told(fleet)["problems"]), 30)
    assert "dropped.kubeconfig" in reclock(fleet, "clusters")
    assert fleet.kubectl.items("nodes")


def test_a_cluster_that_does_not_answer(fleet: RunningFleet, dropped: Path) -> None:
    dropped.write_text(of_east(fleet, server="https://127.0.0.1:9"))
    eventually(lambda: "cannot connect" in reasons(fleet).lower(), 40)
    listed = fleet.kubectl.run("get", "nodes")
    assert listed.code == 0 and "east-n0" in listed.out
    assert "dropped" in listed.err  # the Warning names who is left out


def test_a_cluster_with_the_wrong_ca(fleet: RunningFleet, dropped: Path) -> None:
    west = yaml.safe_load((fleet.layout.members / "west.kubeconfig").read_text())
    other = west["clusters"][0]["cluster"]["certificate-authority-data"]
    assert base64.b64decode(other)
    dropped.write_text(of_east(fleet, **{"certificate-authority-data": other}))
    eventually(lambda: "certificate" in reasons(fleet).lower(), 40)


def test_the_same_cluster_twice(fleet: RunningFleet, dropped: Path) -> None:
    dropped.write_text(of_east(fleet))
    eventually(lambda: "SameCluster" in reasons(fleet), 40)
    names = [node["metadata"]["name"] for node in fleet.kubectl.items("nodes")]
    assert len(names) == len(set(names))
