"""A member behind a link that forgets open connections and lets new ones through: what is written is answered."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest_asyncio
import yaml
from prometheus_client import REGISTRY

from deploy.local.fleet import Fleet
from services.aggregator.types import Aggregated
from services.common.fleet import Member
from services.common.kube.client import KubeClient
from services.common.kube.resource import NAMESPACES, Resource
from tests.integration.clock_rig import eventually
from tests.integration.etcd_server import EtcdServer, find_etcd, free_port
from tests.integration.sim_rig import SimRig, Told
from tests.kube.cut import Link

CONFIG_MAPS = Aggregated("configmaps", "", "v1", "configmaps", "ConfigMap", True)
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False)
BIG = 100_000
PATH = "/api/v1/namespaces/default/configmaps"


class KubeRig(SimRig):
    """The same clock, reads, writes and front before a real host and member. `link`: all the way to the member."""

    def __init__(self, etcd: EtcdServer, clusters: Fleet) -> None:
        super().__init__(etcd, [CONFIG_MAPS])
        self._clusters = clusters
        self.name = f"half-open-{uuid.uuid4().hex[:6]}"

    async def begin(self) -> None:
        """Serve."""
        east = self._clusters.members["east"]
        self.host = await self._connect("host", self._clusters.host.kubeconfig)
        await self._take_token()
        config = yaml.safe_load(east.kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]
        self.link = Link("127.0.0.1", urlsplit(server["server"]).port or 0, free_port())
        server["server"] = f"https://127.0.0.1:{self.link.port}"
        await self.link.start()
        self._stack.push_async_callback(self.link.stop)
        self.direct = await self._connect("east", east.kubeconfig)
        uid = (await self.direct.get(NAMESPACES, None, "kube-system"))["metadata"]["uid"]
        member = Member("east", uid=uid, reachable=True, ready=True, client=await self._connect("east", config))
        await self.fleet.engage(member)
        await self.serve()

    async def _connect(self, name: str, kubeconfig: Any) -> KubeClient:
        client = await KubeClient.connect(kubeconfig, name=name)
        self._stack.push_async_callback(client.close)
        return client

    async def _take_token(self) -> None:
        """Of an account of the host's that may do everything."""
        metadata = {"name": self.name}
        await self.host.create(ACCOUNTS, "default", {"metadata": metadata})
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": "default"}
        role = {"apiGroup": BINDINGS.group, "kind": "ClusterRole", "name": "cluster-admin"}
        await self.host.create(BINDINGS, None, {"metadata": metadata, "subjects": [subject], "roleRef": role})
        self._stack.push_async_callback(self.host.delete, BINDINGS, None, self.name)
        self._stack.push_async_callback(self.host.delete, ACCOUNTS, "default", self.name)
        answer = await self.host.request(
            "POST", ACCOUNTS.path("default", self.name, "token"), body=b'{"spec":{}}', headers={"Content-Type": "application/json"}
        )  # fmt: skip
        self.token = answer.json()["status"]["token"]

    async def label(self, value: str) -> Told:
        """Write through the front."""
        url = f"http://127.0.0.1:{self.port}{PATH}/{self.name}"
        patch, headers = {"metadata": {"labels": {"at": value}}}, {"Content-Type": "application/merge-patch+json"}
        async with self.http.patch(url, json=patch, headers=headers) as answer:
            return Told(answer.status, await answer.json(), answer.headers)


@pytest_asyncio.fixture(loop_scope="session")
async def rig(clusters: Fleet, tmp_path: Path) -> AsyncIterator[KubeRig]:
    binary = find_etcd()
    assert binary is not None, "the clusters have one"
    etcd = EtcdServer(binary, tmp_path / "etcd")
    await etcd.start()
    made = KubeRig(etcd, clusters)
    try:
        await made.begin()
        yield made
    finally:
        await made.close()
        etcd.kill()


def counted(name: str, **labels: str) -> float:
    wanted = {"resource": "configmaps", "cluster": "east", **labels}
    return REGISTRY.get_sample_value(f"reclock_aggregator_clock_{name}_total", wanted) or 0.0


def lists() -> float:
    return sum(counted("relists", reason=reason) for reason in ("new", "restored", "expired", "compacted"))


async def test_a_write_is_answered_though_the_watch_hangs(rig: KubeRig) -> None:
    metadata: dict[str, Any] = {"name": rig.name, "namespace": "default", "labels": {"at": "0"}}
    configs = cast(Any, CONFIG_MAPS).at()
    await rig.direct.create(configs, "default", {"metadata": metadata})
    await eventually(lambda: rig.of().shown("default", rig.name), "the log has it")
    before, listed = counted("watches_renewed", feed="log"), lists()
    query = {"fieldSelector": f"metadata.name={rig.name}", "resourceVersion": str(rig.of().head)}
    async with rig.watch(PATH, **query) as watched:
        rig.link.count()
        await rig.direct.patch(configs, "default", rig.name, {"metadata": {"annotations": {"big": "x" * BIG}}})
        await eventually(lambda: watched.names(), "the watch brings it")
        assert rig.link.forget(BIG), "the connection that brought it"
        told = await rig.label("1")
        assert told.status == 200, told.body
        assert counted("watches_renewed", feed="log") == before + 1
        assert (await rig.label("2")).status == 200
        await eventually(lambda: len(watched.names()) >= 3, "all is told")
        values = [one["object"]["metadata"]["labels"]["at"] for one in watched.events]
        assert values == ["0", "1", "2"], "each once, in order"
        assert watched.events[1]["object"]["metadata"]["resourceVersion"] == told.version
    assert lists() == listed and counted("watches_renewed", feed="log") == before + 1
    await rig.direct.delete(configs, "default", rig.name)
