"""Real kubectl through the front alone: a real host behind it, and one real member for tunnels."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from deploy.local.fleet import Fleet
from services.aggregator.types import Aggregated
from services.common.kube.client import KubeClient
from tests.kube.conftest import Kubectl
from tests.kube.front_rig import NODES, PODS, Config, OneMember, serving_files

REPOSITORY = Path(__file__).parents[2]
CRDS = REPOSITORY / "deploy/kustomize/base/crds/apiaggregation.yaml"
GADGETS = Aggregated("gadgets", "example.com", "v1", "gadgets", "Gadget", True)
GADGET_CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets, singular: gadget, shortNames: [gd]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        description: A gadget of members only.
        properties:
          spec:
            type: object
            properties: {size: {type: integer, description: How large it is.}}
"""


@dataclass
class Running:
    """A front before the host, and kubeconfigs for it."""

    directory: Path
    port: int
    clusters: Fleet
    authority: Path
    program: Path

    def kubeconfig(self, user: str, groups: Sequence[str] = (), path: str = "") -> Path:
        access = self.clusters.host.access(user, groups)
        server = f"https://127.0.0.1:{self.port}{path}"
        name = f"{user}{path.replace('/', '-')}.kubeconfig"
        return replace(access, server=server, authority=self.authority).write(self.directory / name)

    def kubectl(self, user: str = "admin", groups: Sequence[str] = ("system:masters",), path: str = "") -> Kubectl:
        return Kubectl(self.program, self.kubeconfig(user, groups, path))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def front(
    clusters: Fleet, tmp_path_factory: pytest.TempPathFactory, kubectl_program: Path
) -> AsyncIterator[Running]:
    directory = tmp_path_factory.mktemp("front")
    host = await KubeClient.connect(clusters.host.kubeconfig, name="")
    east = await KubeClient.connect(clusters.members["east"].kubeconfig, name="east")
    tls, authority = serving_files(directory / "pki")
    config = Config(front_tls=tls, client_ca=str(clusters.host.authority.pair.cert))
    serving = OneMember("east", east, [PODS, NODES, GADGETS]).front(config, host, checks={"clock": lambda: None})
    port = await serving.start()
    running = Running(directory, port, clusters, authority.pair.cert, kubectl_program)
    await Kubectl(kubectl_program, clusters.host.kubeconfig)("apply", "-f", str(CRDS))
    member = Kubectl(kubectl_program, clusters.members["east"].kubeconfig)
    await member("apply", "-f", "-", stdin=GADGET_CRD)
    await member("wait", "--for=condition=Established", "crd/gadgets.example.com")
    await member("create", "deployment", "web", "--image=nginx")
    await member("rollout", "status", "deployment/web")
    yield running
    await serving.stop()
    await host.close()
    await east.close()


async def test_who_am_i_and_what_may_i(front: Running) -> None:
    admin, dev = front.kubectl(), front.kubectl("dev", ["devs"])
    assert "system:masters" in await admin("auth", "whoami")
    told = await dev("auth", "whoami")
    assert " dev\n" in told and "[devs system:authenticated]" in told and "X509SHA256=" in told
    assert (await admin("auth", "can-i", "delete", "nodes")).strip() == "yes"
    assert (await dev.run("auth", "can-i", "delete", "nodes")).code == 1
    assert "selfsubjectreviews.authentication.k8s.io" in await dev("auth", "can-i", "--list")


async def test_version_and_cluster_info(front: Running) -> None:
    admin = front.kubectl()
    assert "+reclock" in await admin("version")
    assert f"https://127.0.0.1:{front.port}" in await admin("cluster-info")
    assert "[+]clock ok" in await admin("get", "--raw", "/readyz?verbose")


async def test_discovery_knows_host_members_and_our_own(front: Running) -> None:
    admin = front.kubectl()
    told = await admin("api-resources", "--cached=false")
    for kind in ("Deployment", "APIAggregation", "VersionMarker", "Gadget", "Pod"):
        assert f" {kind}\n" in told
    lists = await admin("get", "--raw", "/apis/example.com/v1")
    assert '"shortNames":["gd"]' in lists
    assert '"example.com"' in await admin("get", "--raw", "/apis")
    assert '"preferredVersion"' in await admin("get", "--raw", "/apis/example.com")
    assert (await admin.run("get", "--raw", "/apis/nothing.example.com/v1")).code == 1


async def test_explain(front: Running) -> None:
    admin = front.kubectl()
    assert "KIND:       Deployment" in await admin("explain", "deployment.spec")
    assert "containers" in await admin("explain", "pods.spec")
    assert "How large it is." in await admin("explain", "gadgets.spec")
    assert "incarnation" in await admin("explain", "versionmarkers.store")


async def test_openapi_protobuf_holds_members_types(front: Running) -> None:
    from services.aggregator.front.openapi import _named

    host = await KubeClient.connect(front.clusters.host.kubeconfig, name="")
    media = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    before = await host.request("GET", "/openapi/v2", headers={"Accept": media})
    await host.close()
    through = await KubeClient.connect(front.kubeconfig("admin", ["system:masters"]), name="")
    after = await through.request("GET", "/openapi/v2", headers={"Accept": media})
    again = await through.request(
        "GET", "/openapi/v2", headers={"Accept": media, "If-None-Match": after.headers["ETag"]}, check=False
    )
    await through.close()
    assert again.status == 304
    assert after.body.startswith(before.body)
    new = set(_named(after.body, 9, 1)) - set(_named(before.body, 9, 1))
    assert {"com.example.v1.Gadget", "dev.reclock.v1alpha1.VersionMarker"} <= new


async def test_apply_validates_what_only_members_serve(front: Running) -> None:
    admin = front.kubectl()
    good = "apiVersion: example.com/v1\nkind: Gadget\nmetadata: {name: one}\nspec: {size: 3}\n"
    assert "created" in await admin("apply", "-f", "-", stdin=good)
    bad = await admin.run("apply", "-f", "-", stdin=good.replace("size: 3", "sise: 3"))
    assert bad.code == 1 and 'unknown field "spec.sise"' in bad.err
    assert "one" in await admin("get", "gd")


async def test_host_objects_pass_in_every_form(front: Running) -> None:
    admin = front.kubectl()
    await admin("create", "configmap", "c1", "--from-literal=a=b")
    manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c2}\ndata: {k: v}\n"
    assert "created" in await admin("apply", "-f", "-", stdin=manifest)
    assert "serverside-applied" in await admin("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest)
    await admin("patch", "configmap", "c1", "-p", '{"data":{"a":"c"}}')
    await admin("label", "configmap", "c1", "x=y")
    assert (await admin.json("get", "configmap", "c1"))["data"] == {"a": "c"}
    await admin("delete", "configmap", "c1", "c2")
    watching = await admin.spawn("get", "configmaps", "--watch-only", "-o", "name")
    assert watching.stdout is not None
    await asyncio.sleep(1)
    await admin("create", "configmap", "c3")
    assert await asyncio.wait_for(watching.stdout.readline(), 20) == b"configmap/c3\n"
    watching.kill()
    await watching.wait()


async def test_what_nobody_acts_on_is_warned_about(front: Running) -> None:
    result = await front.kubectl().run("create", "quota", "q", "--hard=pods=3")
    assert result.code == 0 and "resourcequotas: stored, but" in result.err and "next step" in result.err


async def test_a_user_with_a_role_in_one_namespace(front: Running) -> None:
    admin, dev = front.kubectl(), front.kubectl("dev2", ["devs"])
    await admin("create", "rolebinding", "dev2", "--clusterrole=edit", "--user=dev2")
    assert "web-" in await dev("get", "pods")
    refused = await dev.run("get", "pods", "-n", "kube-system")
    assert refused.code == 1
    assert 'User "dev2" cannot list resource "pods" in API group "" in the namespace "kube-system"' in refused.err
    assert (await dev.run("get", "nodes")).code == 1
    pod = (await dev("get", "pods", "-o", "name")).split()[0]
    assert len((await dev("logs", pod, "--tail=1")).splitlines()) == 1
    assert (await dev.run("get", "pods", "--as=admin")).code == 1
    assert "dev2" in await admin("auth", "whoami", "--as=dev2", "--as-group=devs")
    assert (await admin.run("get", "nodes", "--as=dev2")).code == 1
    assert (await dev.run("get", "--raw", "/clusters/east/api/v1/nodes")).code == 1


async def test_service_account_tokens(front: Running) -> None:
    admin = front.kubectl()
    token = (await admin("create", "token", "default")).strip()
    base = f"https://127.0.0.1:{front.port}"
    async with aiohttp.ClientSession() as session:
        options = {"ssl": False, "headers": {"Authorization": f"Bearer {token}"}}
        async with session.get(f"{base}/api/v1/namespaces/default/pods", **options) as answer:  # type: ignore[arg-type]
            assert answer.status == 403
            assert "system:serviceaccount:default:default" in (await answer.json())["message"]
        async with session.get(f"{base}/apis", **options) as answer:  # type: ignore[arg-type]
            assert answer.status == 200
        wrong = {"ssl": False, "headers": {"Authorization": f"Bearer {token[:-3]}"}}
        async with session.get(f"{base}/apis", **wrong) as answer:  # type: ignore[arg-type]
            assert (answer.status, (await answer.json())["reason"]) == (401, "Unauthorized")
        async with session.get(f"{base}/apis", ssl=False) as answer:
            assert answer.status == 401


async def test_a_certificate_of_another_authority_gets_nowhere(front: Running) -> None:
    east = front.clusters.members["east"]
    access = replace(east.access("admin"), server=f"https://127.0.0.1:{front.port}", authority=front.authority)
    kubectl = Kubectl(front.program, access.write(front.directory / "wrong.kubeconfig"))
    assert (await kubectl.run("get", "--raw", "/api")).code == 1


async def test_a_member_as_a_server_of_its_own(front: Running) -> None:
    east = front.kubectl(path="/clusters/east")
    assert "east-n0" in await east("get", "nodes")
    assert "web" in await east("get", "deployments")
    missing = await front.kubectl(path="/clusters/nowhere").run("get", "nodes")
    assert missing.code == 1


async def test_members_decide_where_authorization_is_theirs(front: Running) -> None:
    east, host = front.clusters.members["east"], front.clusters.host
    host_client = await KubeClient.connect(host.kubeconfig, name="")
    east_client = await KubeClient.connect(east.kubeconfig, name="east")
    theirs = replace(PODS, authorization="Member")
    tls, authority = serving_files(front.directory / "member-pki")
    config = Config(front_tls=tls, client_ca=str(host.authority.pair.cert))
    serving = OneMember("east", east_client, [theirs]).front(config, host_client)
    second = replace(front, port=await serving.start(), authority=authority.pair.cert)
    try:
        await front.kubectl()("create", "rolebinding", "dev3", "--clusterrole=admin", "--user=dev3")
        dev = second.kubectl("dev3", ["devs"])
        pod = (await dev("get", "pods", "-l", "app=web", "-o", "name")).split()[0]
        for command in (["logs", pod], ["exec", pod, "--", "true"]):
            refused = await dev.run(*command)
            assert refused.code == 1
            assert 'User "dev3" cannot' in refused.err and 'in the namespace "default"' in refused.err
        member = Kubectl(front.program, east.kubeconfig)
        await member("create", "rolebinding", "dev3", "--clusterrole=admin", "--group=devs")
        assert await dev("exec", pod, "--", "echo", "allowed") == "allowed\n"
        system = second.kubectl("system:kube-scheduler", ["system:masters-not"])
        await front.kubectl()("create", "rolebinding", "sched", "--clusterrole=admin", "--user=system:kube-scheduler")
        told = await system.run("logs", pod)
        assert told.code == 1 and "does not impersonate on members" in told.err
    finally:
        await serving.stop()
        await host_client.close()
        await east_client.close()


def kubectls(program: Path) -> list[Path]:
    """kubectl of PATH, and the newer one of the wheel where it is another."""
    wheel = Path(sys.executable).parent / "kubectl"
    return [program, wheel] if wheel.exists() and wheel != program else [program]


@pytest.mark.parametrize("sockets", ["true", "false"])
async def test_logs_exec_cp_and_port_forward(front: Running, sockets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", sockets)
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", sockets)
    for program in kubectls(front.program):
        kubectl = Kubectl(program, front.kubeconfig("admin", ["system:masters"]))
        pod = (await kubectl("get", "pods", "-l", "app=web", "-o", "name")).split()[0].removeprefix("pod/")
        # All pods of a member share one log, to which other tests write as well.
        assert len((await kubectl("logs", pod, "--tail=1")).splitlines()) == 1
        ended = await kubectl.run("exec", pod, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
        assert (ended.code, ended.out) == (7, "out\n") and ended.err.startswith("err\n")
        assert await kubectl("exec", "-i", pod, "--", "sh", "-c", "cat; echo end", stdin="fed\n") == "fed\nend\n"
        source = front.directory / f"source-{sockets}"
        source.write_bytes(os.urandom(300_000))
        back = front.directory / f"back-{sockets}"
        await kubectl("cp", str(source), f"{pod}:/tmp/copied")
        await kubectl("cp", f"{pod}:/tmp/copied", str(back))
        assert back.read_bytes() == source.read_bytes()
        await forwarded(kubectl, pod)


async def forwarded(kubectl: Kubectl, pod: str) -> None:
    child = await kubectl.spawn("port-forward", pod, ":80")
    assert child.stdout is not None
    try:
        line = (await asyncio.wait_for(child.stdout.readline(), 20)).decode()
        port = line.split("127.0.0.1:")[1].split(" ")[0]
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as answer:
            assert "hello from a pod of cluster east" in await answer.text()
    finally:
        child.kill()
        await child.wait()


async def test_a_shell_on_a_terminal(front: Running) -> None:
    kubectl = front.kubectl()
    pod = (await kubectl("get", "pods", "-l", "app=web", "-o", "name")).split()[0]
    # The kubelet's stand-in drops what a process writes right before its end, hence the sleep.
    command = " ".join([*kubectl.command, "exec", "-it", pod, "--", "sh", "-c", "'tty; sleep 2; exit 6'"])
    child = await asyncio.create_subprocess_exec(
        "script", "-qec", command, "/dev/null",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert child.stdout is not None
    out = await asyncio.wait_for(child.stdout.read(), 30)
    assert b"/dev/pts/" in out and await child.wait() == 6


async def test_logs_of_a_pod_that_is_not_there(front: Running) -> None:
    result = await front.kubectl().run("logs", "nobody")
    assert result.code == 1 and 'pods "nobody" not found' in result.err


