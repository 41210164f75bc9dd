"""The local fleet itself, on real binaries and with real kubectl, straight at its clusters."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.local.api import ApiError
from deploy.local.ask import ask
from deploy.local.fleet import Fleet
from deploy.local.pki import KeyPair
from deploy.local.probes import http, tls_context, until

Make = Callable[[Path], Any]

POD = """
apiVersion: v1
kind: Pod
metadata: {name: %(name)s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: "nginx:1.29"}]
"""


@pytest.fixture
async def pod(clusters: Fleet, kubectl: Make, request: pytest.FixtureRequest) -> Any:
    """(kubectl of east, name of a running pod there), gone after the test."""
    east = kubectl(clusters.members["east"].kubeconfig)
    name = request.node.originalname.replace("_", "-").removeprefix("test-")[:50]
    await east("apply", "-f", "-", stdin=POD % {"name": name})
    await east("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=30s")
    yield east, name
    await east("delete", "pod", name, "--ignore-not-found", "--wait=false")


async def test_nodes_carry_their_members_name(clusters: Fleet, kubectl: Make) -> None:
    for name, member in clusters.members.items():
        nodes = (await kubectl(member.kubeconfig).json("get", "nodes"))["items"]
        assert [node["metadata"]["name"] for node in nodes] == [f"{name}-n0", f"{name}-n1"]
        for node in nodes:
            allocatable = node["status"]["allocatable"]
            assert (allocatable["cpu"], allocatable["memory"], allocatable["pods"]) == ("8", "16Gi", "110")


async def test_the_host_makes_no_pods(clusters: Fleet, kubectl: Make) -> None:
    host = kubectl(clusters.host.kubeconfig)
    await host("create", "deployment", "web", "--image=nginx")
    await host("create", "job", "pi", "--image=perl")
    await host("create", "cronjob", "tick", "--image=busybox", "--schedule=* * * * *", "--dry-run=server")
    await asyncio.sleep(2)
    assert (await host.json("get", "replicasets,pods"))["items"] == []
    await host("delete", "deployment/web", "job/pi", "--cascade=background")


async def test_namespaces_and_owned_objects_go_on_the_host(clusters: Fleet, kubectl: Make) -> None:
    host = kubectl(clusters.host.kubeconfig)
    await host("create", "namespace", "short-lived")
    await host.until(
        "-n", "short-lived", "get", "serviceaccounts", "-o", "name", is_so=lambda out: "default" in out
    )
    await host("delete", "namespace", "short-lived", "--timeout=60s")


async def test_logs(pod: Any, clusters: Fleet) -> None:
    east, name = pod
    log = clusters.members["east"].pod_log
    assert log is not None
    log.write("a line for the test")
    assert (await east("logs", name, "--tail=1")).strip() == "a line for the test"
    follower = await east.spawn("logs", "-f", name, "--tail=1")
    assert await follower.stdout.readline() == b"a line for the test\n"
    log.write("one more")
    assert await follower.stdout.readline() == b"one more\n"
    follower.kill()
    await follower.communicate()


async def test_exec(pod: Any) -> None:
    east, name = pod
    done = await east.run("exec", name, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert done.out == "out\n"
    assert done.err.startswith("err\n")
    assert done.code == 7
    assert await east("exec", "-i", name, "--", "cat", stdin="through and back\n") == "through and back\n"


async def test_cp(pod: Any, tmp_path: Path) -> None:
    east, name = pod
    (tmp_path / "there").write_text("carried\n")
    await east("cp", str(tmp_path / "there"), f"{name}:carried")
    await east("cp", f"{name}:carried", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "carried\n"


async def test_attach(pod: Any, clusters: Fleet) -> None:
    east, name = pod
    log = clusters.members["east"].pod_log
    assert log is not None
    attached = await east.spawn("attach", name)

    async def write() -> None:
        while True:
            log.write("seen by attach")
            await asyncio.sleep(0.2)

    writer = asyncio.create_task(write())
    assert await asyncio.wait_for(attached.stdout.readline(), 20) == b"seen by attach\n"
    writer.cancel()
    attached.kill()
    await attached.communicate()


async def test_port_forward(pod: Any) -> None:
    east, name = pod
    forward = await east.spawn("port-forward", name, ":80")
    said = (await asyncio.wait_for(forward.stdout.readline(), 20)).decode()
    port = said.split("127.0.0.1:")[1].split(" ")[0]
    for path in ("/one", "/two"):
        status, body = await http("GET", f"http://127.0.0.1:{port}{path}")
        assert (status, body) == (200, f"hello from a pod of cluster east: GET {path} HTTP/1.1\n".encode())
    forward.kill()
    await forward.communicate()


async def test_a_job_completes_and_its_logs_stay(clusters: Fleet, kubectl: Make) -> None:
    west = kubectl(clusters.members["west"].kubeconfig)
    await west("create", "job", "pi", "--image=perl")
    await west("wait", "--for=condition=complete", "job/pi", "--timeout=60s")
    assert "container started on cluster west" in await west("logs", "job/pi")
    await west("delete", "job", "pi")
    await west.until("get", "pods", "-l", "job-name=pi", "-o", "name", is_so=lambda out: out == "")


async def test_a_job_whose_pod_fails_fails(clusters: Fleet, kubectl: Make) -> None:
    west = kubectl(clusters.members["west"].kubeconfig)
    template = {
        "metadata": {
            "annotations": {"fleet.reclock.dev/exit-code": "3", "fleet.reclock.dev/run-time": "100ms"}
        },
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]},
    }
    spec = {"backoffLimit": 0, "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bad"}, "spec": spec}
    await west("create", "-f", "-", stdin=json.dumps(job))
    await west("wait", "--for=condition=failed", "job/bad", "--timeout=60s")
    pods = (await west.json("get", "pods", "-l", "job-name=bad"))["items"]
    codes = [p["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for p in pods]
    assert codes == [3]
    await west("delete", "job", "bad")


async def test_a_rollout_replaces_pods_and_a_deleted_deployment_leaves_none(
    clusters: Fleet, kubectl: Make
) -> None:
    west = kubectl(clusters.members["west"].kubeconfig)
    await west("create", "deployment", "web", "--image=nginx:1", "--replicas=3")
    await west("rollout", "status", "deployment/web", "--timeout=60s")
    await west("set", "image", "deployment/web", "nginx=nginx:2")
    await west("rollout", "status", "deployment/web", "--timeout=60s")
    images = ["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.containers[0].image}"]
    await west.until(*images, is_so=lambda out: out.split() == ["nginx:2"] * 3)
    await west("delete", "deployment", "web")
    await west.until("get", "pods,replicasets", "-l", "app=web", "-o", "name", is_so=lambda out: out == "")


async def test_an_api_server_killed_and_started_keeps_its_objects(clusters: Fleet, kubectl: Make) -> None:
    west = kubectl(clusters.members["west"].kubeconfig)
    await west("create", "configmap", "kept", "--from-literal=a=b")
    apiserver = clusters.processes["west-apiserver"]
    await apiserver.kill9()
    assert not apiserver.running
    assert (await west.run("get", "configmap", "kept")).code != 0
    await apiserver.start()
    await apiserver.wait_ready()
    assert await west("get", "configmap", "kept", "-o", "jsonpath={.data.a}") == "b"
    await clusters.members["west"].wait_usable()


async def test_etcd_killed_and_started_keeps_objects(clusters: Fleet, kubectl: Make) -> None:
    west = kubectl(clusters.members["west"].kubeconfig)
    await west("create", "configmap", "kept-too", "--from-literal=a=b")
    etcd = clusters.processes["west-etcd"]
    await etcd.kill9()
    await etcd.start()
    await etcd.wait_ready()
    out = await west.until(
        "get", "configmap", "kept-too", "-o", "jsonpath={.data.a}", is_so=lambda out: out == "b"
    )
    assert out == "b"


async def test_a_paused_api_server_answers_when_resumed(clusters: Fleet, kubectl: Make) -> None:
    west = kubectl(clusters.members["west"].kubeconfig)
    apiserver = clusters.processes["west-apiserver"]
    apiserver.pause()
    assert apiserver.state == "paused"
    assert (await west.run("get", "--raw", "/version", "--request-timeout=1s")).code != 0
    apiserver.resume()
    assert "gitVersion" in await west("get", "--raw", "/version")


async def test_anonymous_callers_get_health_only(clusters: Fleet) -> None:
    tls = tls_context(clusters.host.authority.pair.cert)
    assert (await http("GET", f"{clusters.host.server}/readyz", tls=tls))[0] == 200
    assert (await http("GET", f"{clusters.host.server}/api/v1/namespaces", tls=tls))[0] == 401


async def test_a_user_without_rights_is_refused(clusters: Fleet, kubectl: Make, tmp_path: Path) -> None:
    access = clusters.host.access("jane", ["developers"])
    assert isinstance(access.identity, KeyPair)
    jane = kubectl(access.write(tmp_path / "jane.kubeconfig"))
    refused = await jane.run("get", "secrets")
    assert 'User "jane" cannot list resource "secrets"' in refused.err


async def test_a_member_joins_a_running_fleet(clusters: Fleet, kubectl: Make) -> None:
    north = await clusters.add_member("north", nodes=1)
    try:
        assert await kubectl(north.kubeconfig)("get", "nodes", "-o", "name") == "node/north-n0\n"
        assert clusters.layout.member_kubeconfig("north").exists()
        assert "north" in json.loads(clusters.layout.fleet_json.read_text())["clusters"]
        with pytest.raises(ValueError, match="there is a cluster north already"):
            await clusters.add_member("north")
    finally:
        await clusters.remove_member("north")
    assert "north-apiserver" not in clusters.processes
    assert not clusters.layout.member_kubeconfig("north").exists()


async def test_apply_of_an_unknown_kind_says_so(clusters: Fleet) -> None:
    nothing = {"apiVersion": "v1", "kind": "Nothing", "metadata": {"name": "x"}}
    with pytest.raises(ApiError, match="serves no Nothing in v1"):
        await clusters.host.api.apply(nothing)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize("when", ["starting", "ready"])
async def test_a_signal_leaves_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals, when: str
) -> None:
    directory = tmp_path / "fleet"
    command = [
        sys.executable,
        "-m",
        "deploy.local.up",
        "--dir",
        str(directory),
        "--members=east",
        "--no-services",
    ]
    up = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert up.stdout is not None
    async for line in up.stdout:
        if (b"API server up" if when == "starting" else b"ready; Ctrl-C") in line:
            break
    assert _processes_naming(str(directory))
    up.send_signal(number)
    assert await asyncio.wait_for(up.wait(), 30) == 0
    assert not directory.exists()
    assert _processes_naming(str(directory)) == []


async def test_a_killed_supervisor_takes_its_processes_along(tmp_path: Path) -> None:
    directory = tmp_path / "fleet"
    command = [
        sys.executable,
        "-m",
        "deploy.local.up",
        "--dir",
        str(directory),
        "--members=east",
        "--no-services",
    ]
    up = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert up.stdout is not None
    async for line in up.stdout:
        if b"ready; Ctrl-C" in line:
            break
    up.kill()
    await up.wait()

    async def left() -> str | None:
        return ", ".join(_processes_naming(str(directory))) or None

    await until(left, "processes are left", 20)
    # What is left on disk does not hinder the next fleet.
    async with Fleet.start(directory, members=[]) as fleet:
        assert fleet.processes["host-apiserver"].running


async def test_a_failed_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deploy.local import kube
    from deploy.local.process import ProcessFailed

    monkeypatch.setattr(kube.commands, "HOST_CONTROLLERS", ("no-such-controller",))
    directory = tmp_path / "fleet"
    with pytest.raises(
        ProcessFailed, match=r"host-controller-manager ended \(code 1\)(?s:.)*no-such-controller"
    ):
        async with Fleet.start(directory, members=["east"]):
            raise AssertionError("it cannot start")
    assert not directory.exists()
    assert _processes_naming(str(directory)) == []


def _processes_naming(text: str) -> list[str]:
    """Command lines of the processes, but this one, that contain `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if text in line:
                found.append(line)
    return found


async def test_a_detached_demo_shows_pods_of_both_members_and_ends_when_told(
    tmp_path: Path, kubectl: Make
) -> None:
    directory = tmp_path / "demo"
    demo = [sys.executable, "-m", "deploy.local.demo", "--dir", str(directory)]
    environment = {**os.environ, "MEMBERS": "east,west", "DETACH": "1", "ENGINE": ""}
    up = await asyncio.create_subprocess_exec(*demo, env=environment, stdout=asyncio.subprocess.PIPE)
    said = (await asyncio.wait_for(up.communicate(), 240))[0].decode()
    try:
        assert up.returncode == 0, said
        assert 'deployment "hello" successfully rolled out' in said
        front = kubectl(directory / "kubeconfig")
        pods = (await front.json("get", "pods", "-l", "app=hello"))["items"]
        clusters = sorted(pod["metadata"]["annotations"]["reclock.dev/cluster"] for pod in pods)
        assert clusters == ["east", "east", "west", "west"]
        listed = await asyncio.to_thread(ask, directory / "control.sock", "ps")
        states = {process["name"]: process["state"] for process in listed["processes"]}
        assert states["aggregator"] == states["front-controller-manager"] == "running"
    finally:
        down = await asyncio.create_subprocess_exec(*demo, "--stop")
        assert await asyncio.wait_for(down.wait(), 90) == 0
    assert not directory.exists()
    assert _processes_naming(str(directory)) == []


async def test_a_killed_service_of_a_kept_fleet_comes_back(tmp_path: Path) -> None:
    directory = tmp_path / "fleet"
    async with Fleet.start(directory, members=["east"], services=True, keep_alive=True) as fleet:
        aggregator = fleet.processes["aggregator"]
        first = aggregator.pid
        assert first
        os.kill(first, signal.SIGKILL)

        async def again() -> str | None:
            return None if aggregator.restarts == 1 and aggregator.running else aggregator.state

        await until(again, "the aggregator's second start", 30)
        await aggregator.wait_ready()
        assert aggregator.pid != first
