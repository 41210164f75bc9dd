"""client-go through the front: informers and a RetryWatcher over kill -9 and a member's absence; protobuf."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from services.aggregator import protobuf
from services.aggregator.protobuf import to_json
from services.common.kube.client import KubeClient
from tests.kube.session.followers import CLIENTS, Followers
from tests.kube.session.tools import Kubectl, RunningFleet, eventually

AWAY = 15.0  # seconds
PROTOBUF = "application/vnd.kubernetes.protobuf"
VICTIMS = ("aggregator", "etcd", "scheduler", "reconciler")


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
    print(f"{len(retry)} events of {len({uid for _, uid in told})} pods, the same for {2 * len(CLIENTS)} clients")


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


def test_typed_clients_in_protobuf(fleet: RunningFleet, kubectl: Kubectl, go_clients: Path) -> None:
    """All that controllers do, with JSON taken too, and with nothing but protobuf: every answer is protobuf."""
    config, namespace = str(fleet.layout.kubeconfig), kubectl.namespace
    lines = run_go(go_clients, "protobuf", "-kubeconfig", config, "-namespace", namespace).splitlines()
    assert len(lines) == 2
    for line in lines:
        answers = json.loads(line)["answers"]
        assert len(answers) == 12
        assert all(kind.startswith(PROTOBUF) for kind in answers.values()), answers


def test_informers_are_answered_in_protobuf(fleet: RunningFleet, kubectl: Kubectl, go_clients: Path) -> None:
    """What client-go asks for without being told: protobuf first, and metadata in protobuf."""
    with Followers(go_clients, fleet, kubectl.namespace, watch_list=False) as followers:
        kinds = {name: part["requests"]["answers"] for name, part in followers.report().items()}
    assert all(kinds[name].startswith(PROTOBUF) for name in ("protobuf", "metadata")), kinds
    assert kinds["dynamic"].startswith("application/json")


def test_protobuf_is_the_members_own_but_for_what_is_changed(fleet: RunningFleet, kubectl: Kubectl) -> None:
    retried(kubectl, "apply", "-f", "-", stdin=workload("Deployment", "bytes", 3))
    eventually(lambda: settled(kubectl, 3), 60)
    found = eventually(lambda: asyncio.run(compared(fleet, kubectl)), 30)
    assert found == 3


async def compared(fleet: RunningFleet, kubectl: Kubectl) -> int:
    """Compare pods of the front's list, and of its get, with their members' own."""
    async with AsyncExitStack() as stack:
        clients: dict[str, KubeClient] = {}
        for name in ("", *members_of(fleet)):
            path = fleet.layout.cluster_kubeconfig(name) if name else fleet.layout.kubeconfig
            clients[name] = await KubeClient.connect(yaml.safe_load(path.read_text()), name=name)
            stack.push_async_callback(clients[name].close)
        path = f"/api/v1/namespaces/{kubectl.namespace}/pods"
        headers = {"Accept": PROTOBUF}
        listed = (await clients[""].request("GET", path, headers=headers)).body
        assert fields(fields(listed[4:])[0][1])[1] == (2, b"PodList")
        items = [value for number, value in fields(fields(listed[4:])[1][1]) if number == 2]
        for item in items:
            shown = dict(fields(fields(item)[0][1]))
            name = shown[1].decode()
            notes = [dict(fields(value)) for number, value in fields(fields(item)[0][1]) if number == 12]
            cluster = next(note[2].decode() for note in notes if note[1] == b"reclock.dev/cluster")
            got = (await clients[""].request("GET", f"{path}/{name}", headers=headers)).body
            own = (await clients[cluster].request("GET", f"{path}/{name}", headers=headers)).body
            assert fields(got[4:])[0] == fields(own[4:])[0] and fields(got[4:])[2:] == fields(own[4:])[2:]
            native = fields(own[4:])[1][1]
            for body in (item, fields(got[4:])[1][1]):
                assert fields(body)[1:] == fields(native)[1:], "all but the metadata is the member's"
                assert unchanged(fields(body)[0][1]) == unchanged(fields(native)[0][1])
    return len(items)


def fields(message: bytes) -> list[tuple[int, Any]]:
    return list(protobuf._fields(message))


def unchanged(metadata: bytes) -> list[tuple[int, Any]]:
    """ObjectMeta without its version, the cluster's annotation, and owners (host and member have other uids)."""
    uids = [dict(fields(value))[4] for number, value in fields(metadata) if number == 13]
    kept = []
    for number, value in fields(metadata):
        if number == 6 or (number == 12 and dict(fields(value))[1].startswith(b"reclock.dev/")):
            continue
        if number in (13, 17):
            for uid in uids:
                value = value.replace(uid, b"-" * len(uid))
        kept.append((number, value))
    return kept


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
