"""What `reclock drain` says is left on a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from reclock.cli import drain
from reclock.cli.api import CliError
from reclock.cli.drain import left_on


def workload(kind: str, name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "ns", "name": name}, "spec": {"owner": {"kind": kind, "name": name}}, "status": status}


def placed(**clusters: int) -> dict[str, Any]:
    return {"clusters": [{"name": name, "replicas": number} for name, number in clusters.items()]}


def holds(kind: str, reason: str = "", message: str = "") -> list[dict[str, str]]:
    return [{"type": kind, "status": "True", "reason": reason, "message": message}]


COPY = [{"cluster": "east", "state": "Applied"}]
REMOVING = [{"cluster": "east", "state": "Removing"}]
SURGE = {"placement": placed(west=4), "divisions": {"web-1": {"east": 1, "west": 4}, "web-2": {"east": 1}}, "copies": REMOVING}
VOLUMES = {"placement": placed(east=1), "copies": COPY, "conditions": holds("DrainBlocked", "HasVolumes", "stays")}


@pytest.mark.parametrize(("item", "want"), [
    (workload("Deployment", "web", **SURGE), ("2", "Moving")),
    (workload("Deployment", "web", placement=placed(west=4), copies=REMOVING), ("-", "Stopping")),
    (workload("Deployment", "data", **VOLUMES), ("1", "Stays")),
    (workload("Deployment", "new", placement=placed(east=3)), ("3", "Waiting")),
    (workload("Job", "work", copies=[{"cluster": "east", "state": "Suspended"}]), ("-", "Suspended")),
    (workload("StatefulSet", "db", copies=[{"cluster": "east", "state": "LeftBehind"}]), ("-", "LeftBehind")),
    (workload("Deployment", "other", placement=placed(west=3)), None),
    (workload("DaemonSet", "agent", placement=placed(east=0)), None),
    (workload("Job", "done", placement=placed(east=1), conditions=holds("Finished")), None),
])  # fmt: skip
def test_what_is_left(item: dict[str, Any], want: tuple[str, str] | None) -> None:
    found = left_on("east", [item])
    assert [(one.replicas, one.state) for one in found] == ([want] if want else [])


class Api:
    """Answers with one list of workloads after the other, the last one for ever."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.pods: list[dict[str, Any]] = []

    async def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        if path == "/api/v1/pods":
            assert query == {"labelSelector": "reclock.dev/routed"}
            return self.pods
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def test_it_waits_and_tells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(drain, "POLL", 0.0)
    api: Any = Api([workload("Deployment", "web", **SURGE)], [])
    await drain.wait(api, "east", 60)
    out = capsys.readouterr().out
    assert "deployment/web (ns): 2 left; Moving" in out and "deployment/web (ns): gone" in out and "drained" in out


def pod(name: str, cluster: str, phase: str = "Running") -> dict[str, Any]:
    annotations = {"reclock.dev/cluster": cluster}
    return {"metadata": {"namespace": "ns", "name": name, "annotations": annotations}, "status": {"phase": phase}}


async def test_pods_that_were_made_directly_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    api: Any = Api([])
    api.pods = [pod("one", "east"), pod("done", "east", "Succeeded"), pod("other", "west")]
    await drain.wait(api, "east", 60)
    out = capsys.readouterr().out
    assert "pod/one (ns) stays" in out and "kubectl -n ns delete pod one" in out
    assert "done" not in out and "other" not in out


@pytest.mark.parametrize(("items", "timeout", "says"), [
    ([workload("Deployment", "web", **SURGE)], 0, "are still there after 0 s"),
    ([workload("Deployment", "data", **VOLUMES)], 1e9, "stay until a policy lets them move"),
])  # fmt: skip
async def test_it_ends_with_what_is_left(
    monkeypatch: pytest.MonkeyPatch, items: list[dict[str, Any]], timeout: float, says: str
) -> None:
    monkeypatch.setattr(drain, "POLL", 0.0)
    api: Any = Api(items)
    with pytest.raises(CliError, match=says) as caught:
        await drain.wait(api, "east", timeout)
    assert "NAMESPACE" in str(caught.value) and items[0]["metadata"]["name"] in str(caught.value)
