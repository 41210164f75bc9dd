"""client-go through the front: informers and a RetryWatcher over kill -9 and a member's absence; protobuf."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.aggregator import protobuf
from services.aggregator.protobuf import to_json
from tests.kube.session.followers import CLIENTS, Followers, build
from tests.kube.session.tools import Kubectl, RunningFleet, eventually

AWAY = 15.0  # seconds
VICTIMS = ("aggregator", "etcd", "scheduler", "reconciler")


@pytest.fixture(scope="session")
def go_clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("go-clients"))


def workload(kind: str, name: str, count: int) -> str:
    pod: dict[str, Any] = {"containers": [{"name": "main", "image": "example/web:1"}]}
    labels = {"app": name}
    if kind == "Job":
        version = "batch/v1"
        spec = {"completions": count, "template": {"spec": {**pod, "restartPolicy": "Never"}}}
    else:
        version = "apps/v1"
        spec = {
            "replicas": count,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
    return json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})


def retried(kubectl: Kubectl, *args: str, stdin: str | None = None) -> None:
    """A part of Reclock is away: again until it is accepted."""
    eventually(lambda: kubectl.run(*args, stdin=stdin).code == 0, 60)


def members_of(fleet: RunningFleet) -> list[str]:
    ends = "-apiserver"
    names = {name.removesuffix(ends) for name in fleet.processes if name.endswith(ends)}
    return sorted(names - {"host"})


def native_pods(fleet: RunningFleet, namespace: str, *members: str) -> dict[str, str]:
    """The members' truth, asked of themselves: uid -> phase."""
    return {
        pod["metadata"]["uid"]: pod["status"]["phase"]
        for member in members or members_of(fleet)
        for pod in fleet.member(member).within(namespace).items("pods")
    }


def shown_pods(kubectl: Kubectl) -> dict[str, str]:
    """The front's list: uid -> version."""
    return {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"] for pod in kubectl.items("pods")}


def settled(kubectl: Kubectl, pods: int) -> bool:
    """All workloads are complete, with so many pods in all."""
    for deployment in kubectl.items("deployments"):
        assert deployment["status"].get("readyReplicas") == deployment["spec"]["replicas"], deployment
    for job in kubectl.items("jobs"):
        assert job["status"].get("succeeded") == job["spec"]["completions"], job
    found = kubectl.items("pods")
    assert len(found) == pods, sorted(pod["metadata"]["name"] for pod in found)
    return True


def agreed(fleet: RunningFleet, kubectl: Kubectl, followers: list[Followers]) -> bool:
    """Every client holds exactly what the members have, at the versions that a list shows."""
    shown = shown_pods(kubectl)
    assert set(shown) == set(native_pods(fleet, kubectl.namespace))
    for group in followers:
        for client, store in group.stores().items():
            assert store == shown, (client, group.watch_list)
    return True


def under_way(followers: list[Followers], name: str) -> bool:
    """Every client was told of such a pod. (Of a watch that ends without any event client-go, too, lists anew.)"""
    told = [
        {event["client"] for event in group.events if event["name"].startswith(name)} for group in followers
    ]
    return all(clients == set(CLIENTS) for clients in told)


@contextmanager
def watched_at_home(fleet: RunningFleet, namespace: str) -> Iterator[list[tuple[str, str]]]:
    """Filled at the end of the block with (type, uid) of everything that happened to pods on the members."""
    happened: list[tuple[str, str]] = []
    columns = "custom-columns=type:.type,uid:.object.metadata.uid"
    watches = [
        fleet.member(member)
        .within(namespace)
        .start("get", "pods", "--watch", "--output-watch-events", "-o", columns)
        for member in members_of(fleet)
    ]
    try:
        yield happened
    finally:
        for process in watches:
            process.terminate()
            lines = [line.split() for line in process.communicate(timeout=20)[0].splitlines()]
            happened += [(line[0], line[1]) for line in lines if len(line) == 2 and line[0].isupper()]


def test_kills_leave_no_mark_on_streams(fleet: RunningFleet, kubectl: Kubectl, go_clients: Path) -> None:
    namespace = kubectl.namespace
    with ExitStack() as stack:
        home = stack.enter_context(watched_at_home(fleet, namespace))
        inner = stack.enter_context(ExitStack())
        followers = [
            inner.enter_context(Followers(go_clients, fleet, namespace, watch_list=on))
            for on in (False, True)
        ]
        for number, process in enumerate(VICTIMS, start=1):
            victim = next(name for name in fleet.processes if name in (process, f"reclock-{process}"))
            retried(kubectl, "apply", "-f", "-", stdin=workload("Deployment", f"before-{number}", 2))
            retried(kubectl, "apply", "-f", "-", stdin=workload("Job", f"job-{number}", 1))
            eventually(lambda name=f"before-{number}-": under_way(followers, name), 30)  # type: ignore[misc]
            fleet.do("kill9", victim)
            fleet.do("start", victim)
            retried(kubectl, "apply", "-f", "-", stdin=workload("Deployment", f"after-{number}", 2))
            retried(kubectl, "delete", "deployment", f"before-{number}", "--ignore-not-found")
            eventually(lambda count=3 * number: settled(kubectl, count), 60)  # type: ignore[misc]
            eventually(lambda: agreed(fleet, kubectl, followers), 30)
            assert [fault for group in followers for fault in group.faults()] == [], (
                f"after kill -9 of {victim}"
            )
        retry = followers[0].of("retry")
        for group in followers:
            for client in CLIENTS:
                assert group.of(client) == [{**told, "client": client} for told in retry], client
        inner.close()
        stack.close()
    told = Counter((event["type"], event["uid"]) for event in retry)
    assert (Counter(home) - told, told - Counter(home)) == ({}, {}), (
        "missing, or told without having happened"
    )
    print(f"{len(retry)} events of {len({uid for _, uid in told})} pods, the same for 8 clients")


def recovered(member: Kubectl, name: str) -> None:
    """Wait for the member's own controllers, which come back to their API server up to 30 s after it: tests that
    follow need the service accounts that they make."""
    retried(member, "create", "namespace", name)
    eventually(lambda: member.within(name).run("get", "serviceaccount", "default").code == 0, 90)
    member.run("delete", "namespace", name, "--wait=false")


def test_member_away_while_an_informer_lists(fleet: RunningFleet, kubectl: Kubectl, go_clients: Path) -> None:
    namespace = kubectl.namespace
    retried(kubectl, "apply", "-f", "-", stdin=workload("Deployment", "web", 4))
    eventually(lambda: settled(kubectl, 4), 60)
    before = shown_pods(kubectl)
    at_west = native_pods(fleet, namespace, "west")
    with Followers(go_clients, fleet, namespace, watch_list=False) as early:
        fleet.do("kill9", "east-apiserver")
        try:
            eventually(lambda: "east" in kubectl.run("get", "pods").err, 60)  # a Warning names it
            with (
                Followers(go_clients, fleet, namespace, watch_list=False) as late,
                Followers(go_clients, fleet, namespace, watch_list=True) as streamed,
            ):
                time.sleep(AWAY)
                assert kubectl.run("label", "pods", "--all", "meanwhile=yes").code == 0
                assert all(set(store) == set(before) for store in early.stores().values()), (
                    "nothing is deleted"
                )
                assert all(set(store) >= set(at_west) for store in late.stores().values())
                fleet.do("start", "east-apiserver")
                retried(fleet.member("east").within(namespace), "label", "pods", "--all", "back=yes")
                everyone = [early, late, streamed]
                eventually(lambda: agreed(fleet, kubectl, everyone), 90)
                assert all(
                    pod["metadata"]["labels"].keys() & {"meanwhile", "back"} for pod in kubectl.items("pods")
                )
                faults = [fault for group in everyone for fault in group.faults()]
                # Who listed without east is told of its objects as MODIFIED: an informer takes them as new.
                assert [fault for fault in faults if "never ADDED: MODIFIED" not in fault] == []
                assert not any("never ADDED" in fault for fault in early.faults())
        finally:
            if fleet.processes["east-apiserver"]["state"] != "running":
                fleet.do("start", "east-apiserver")
            recovered(fleet.member("east"), f"probe-{namespace}")


def test_typed_client_in_protobuf(fleet: RunningFleet, kubectl: Kubectl, go_clients: Path) -> None:
    """create, get, list, watch, update, evict, delete: bodies in protobuf, answers in JSON."""
    done = run_go(
        go_clients,
        "protobuf",
        "-kubeconfig",
        str(fleet.layout.kubeconfig),
        "-namespace",
        kubectl.namespace,
    )
    answers = json.loads(done)["answers"]
    taken = ("application/json", "application/vnd.kubernetes.protobuf")
    assert all(answer.startswith(taken) for answer in answers.values()), answers


def test_protobuf_bodies_mean_what_client_go_meant(go_clients: Path) -> None:
    pairs = []
    for line in run_go(go_clients, "samples").splitlines():
        sample = json.loads(line)
        sample["got"] = json.loads(to_json(base64.b64decode(sample["protobuf"])))
        pairs.append(json.dumps(sample))
    assert len(pairs) > 200
    assert run_go(go_clients, "compare", stdin="\n".join(pairs)) == ""


def test_protobuf_table_is_client_gos(go_clients: Path) -> None:
    table = json.loads(run_go(go_clients, "types"))
    own = json.loads(Path(protobuf.__file__).with_name("protobuf.json").read_text())
    assert own == table, "write `clients -mode types` to services/aggregator/protobuf.json"


def run_go(binary: Path, mode: str, *args: str, stdin: str = "") -> str:
    done = subprocess.run(
        [binary, "-mode", mode, *args], input=stdin, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
