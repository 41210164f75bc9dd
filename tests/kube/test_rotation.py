"""A member's token is revoked and later replaced in its Secret: what is said meanwhile, and that all goes on by itself."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
import yaml

from deploy.local.fleet import Fleet
from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from tests.kube.conftest import Kubectl
from tests.kube.front_rig import PODS, Config, OneMember, serving_files
from tests.kube.test_discovery import CONFIG_MAPS, Rig, discovering, eventually, on_host
from tests.kube.test_front_kubectl import Running

__all__ = ["on_host"]


@pytest_asyncio.fixture(loop_scope="session")
async def rig(clusters: Fleet, on_host: Kubectl, tmp_path: Path) -> AsyncIterator[Rig]:
    """Without west: one that discovery has reached keeps its place, and the Secret's would be left out as the same cluster."""
    async with discovering(clusters, on_host, tmp_path, "east") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def account(west: Kubectl) -> AsyncIterator[str]:
    """A ServiceAccount of west that may do all, with a name of its own for each try."""
    name = f"rotated-{uuid.uuid4().hex[:6]}"
    await west("create", "serviceaccount", name)
    await west("create", "clusterrolebinding", name, "--clusterrole=cluster-admin", f"--serviceaccount=default:{name}")
    yield name
    await west("delete", f"serviceaccount/{name}", f"clusterrolebinding/{name}", f"secret/{name}-1", f"secret/{name}-2",
               f"configmap/{name}", "--ignore-not-found")  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def west(clusters: Fleet, kubectl: Any) -> Kubectl:
    program: Kubectl = kubectl(clusters.members["west"].kubeconfig)
    return program


async def _token(west: Kubectl, account: str, name: str) -> str:
    """A token that holds as long as a Secret of that name is there."""
    await west("create", "secret", "generic", name)
    return (await west("create", "token", account, "--bound-object-kind=Secret", f"--bound-object-name={name}")).strip()


def _kubeconfig(fleet: Fleet, token: str, file: Path) -> Path:
    """West's, with a token alone."""
    config = yaml.safe_load(fleet.members["west"].kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file.write_text(yaml.safe_dump(config))
    return file


async def test_a_revoked_token_is_told_and_its_successor_taken(
    rig: Rig, on_host: Kubectl, west: Kubectl, account: str, kubectl_program: Path, tmp_path: Path
) -> None:
    fleet = await rig.watch()
    await rig.stop()
    rig.config.providers.append({"type": "kubeconfig-secret", "namespace": "default"})
    file = _kubeconfig(rig.fleet, await _token(west, account, f"{account}-1"), tmp_path / "west.yaml")
    await on_host("delete", "secret", "rotated", "--ignore-not-found")
    await on_host("create", "secret", "generic", "rotated", f"--from-file=kubeconfig={file}")
    await on_host("label", "secret", "rotated", "sigs.k8s.io/multicluster-runtime-kubeconfig=true")
    await rig.start()
    await eventually(lambda: "rotated" in fleet.members and fleet.members["rotated"].ready)
    member = fleet.members["rotated"]
    seen: list[str] = []
    informer = Informer(
        member.client, CONFIG_MAPS, namespace="default", handler=lambda kind, obj, old: seen.append(obj["metadata"]["name"])
    )
    following = asyncio.create_task(informer.run())
    tls, authority = serving_files(tmp_path / "pki")
    host = await KubeClient.connect(rig.fleet.host.kubeconfig, name="")
    front = OneMember("rotated", member.client, [PODS]).front(
        Config(front_tls=tls, client_ca=str(rig.fleet.host.authority.pair.cert)), host
    )
    port = await front.start()
    user = Running(tmp_path, port, rig.fleet, authority.pair.cert, kubectl_program).kubectl()
    try:
        await user("get", "pods", "-n", "default")
        await eventually(informer.synced.is_set)
        # The apiserver takes a token that it has seen for some seconds more.
        await west("delete", "secret", f"{account}-1")
        await on_host.until("get", "cluster", "rotated", "-o", "yaml", is_so=lambda out: "reason: Unauthorized" in out)
        await eventually(lambda: not member.ready)
        assert member.reachable
        told = await on_host.json("get", "cluster", "rotated")
        [ready] = [one for one in told["status"]["conditions"] if one["type"] == "Ready"]
        assert (ready["status"], ready["message"]) == (
            "False", "it refuses the credentials (401): renew them in the kubeconfig"
        )  # fmt: skip
        refused = await user.run("get", "pods", "-n", "default")
        assert refused.code == 1 and "cluster rotated refuses the credentials that Reclock has for it" in refused.err
        # The successor: nothing is restarted, nothing leaves and joins.
        rig.listener.told.clear()
        _kubeconfig(rig.fleet, await _token(west, account, f"{account}-2"), file)
        fresh = await on_host("create", "secret", "generic", "rotated", f"--from-file=kubeconfig={file}", "--dry-run=client", "-oyaml")
        await on_host("patch", "secret", "rotated", "--patch", yaml.safe_dump({"data": yaml.safe_load(fresh)["data"]}))
        await eventually(lambda: member.ready)
        await user("get", "pods", "-n", "default")
        await west("create", "configmap", account)
        await eventually(lambda: account in seen)
        assert {what for what, name in rig.listener.told if name == "rotated"} == {"updated"}
        assert fleet.members["rotated"] is member
    finally:
        following.cancel()
        await asyncio.wait({following})
        await front.stop()
        await host.close()
        await on_host("delete", "secret", "rotated", "--ignore-not-found")
