"""A front on its own, for tests of the front alone: aggregated types are those of one member, passed through.

Run as a program it serves a fleet that is up: `python -m tests.kube.front_rig DIR PORT [--aggregate]`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import uvloop
from aiohttp import web

from deploy.local.kubeconfig import Access
from deploy.local.pki import Authority
from services.aggregator.front.front import Front
from services.aggregator.front.relay import encoded_target, relay
from services.aggregator.front.server import FrontRequest
from services.aggregator.types import Aggregated, Call
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.telemetry import setup_logging

PODS = Aggregated("pods", "", "v1", "pods", "Pod", True)
NODES = Aggregated("nodes", "", "v1", "nodes", "Node", False)


@dataclass
class Tls:
    cert: str = ""
    key: str = ""


@dataclass
class Config:
    """What the front reads of the aggregator's configuration."""

    front_address: str = "127.0.0.1:0"
    front_tls: Tls = field(default_factory=Tls)
    client_ca: str = ""
    request_header_ca: str = ""
    request_header_names: list[str] = field(default_factory=list)


class OneMember:
    """Stands for aggregations, fleet, clock, reads and writes: everything aggregated lives on one member."""

    def __init__(self, name: str, client: KubeClient | None, aggregated: list[Aggregated]) -> None:
        self.name, self.client = name, client
        self.aggregated = {(one.group, one.resource): one for one in aggregated}
        self.members = {name: SimpleNamespace(client=client, reachable=True)} if client else {}
        self.absent: set[tuple[str, str]] = set()
        self.calls: list[Call] = []
        self.missing: str | None = None

    # Fleet
    def check(self) -> str | None:
        return self.missing

    # Aggregations
    def unsettled(self, group: str, resource: str) -> str | None:
        return None

    def warning(self, one: Aggregated) -> str | None:
        return None

    def lookup(self, group: str, resource: str) -> Aggregated | None:
        return self.aggregated.get((group, resource))

    def all(self) -> list[Aggregated]:
        return list(self.aggregated.values())

    def served_by(self, one: Aggregated) -> list[str]:
        return [self.name]

    # Clock and ResourceClock: (get is of the clock here, reads are below)
    def clock(self) -> Any:
        resources = {
            key: SimpleNamespace(shown=self._shown, snapshot=self._snapshot, aggregated=one, members={})
            for key, one in self.aggregated.items()
        }
        return SimpleNamespace(get=lambda group, name: resources.get((group, name)))

    def _shown(self, namespace: str, name: str) -> Any:
        return None if (namespace, name) in self.absent else SimpleNamespace(cluster=self.name)

    async def _snapshot(self, **_: Any) -> None:
        return None

    # Reads and Writes
    async def handle(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        self.calls.append(call)
        if self.client is None:
            raise StatusError(404, "NotFound", "nothing here")
        request = cast(FrontRequest, call.request)
        return await relay(request, self.client, *encoded_target(request))

    async def markers(self, call: Call) -> web.StreamResponse:
        self.calls.append(call)
        return web.json_response({"kind": "VersionMarkerList", "apiVersion": "reclock.dev/v1alpha1", "items": []})

    def front(self, config: Config, host: KubeClient, **options: Any) -> Front:
        verbs = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "subresource")
        handlers = SimpleNamespace(**dict.fromkeys(verbs, self.handle))
        markers = SimpleNamespace(get=self.markers, list=self.markers, watch=self.markers)
        return Front(
            config, host=host, fleet=cast(Any, self), aggregations=cast(Any, self), clock=self.clock(),
            reads=cast(Any, handlers), writes=cast(Any, handlers), version_markers=cast(Any, markers), **options,
        )  # fmt: skip


def serving_files(directory: Path) -> tuple[Tls, Authority]:
    """A serving certificate of an authority of its own."""
    authority = Authority(directory, "front-ca")
    pair = authority.server("front", ["127.0.0.1", "localhost"])
    return Tls(str(pair.cert), str(pair.key)), authority


async def main(directory: Path, port: int, aggregate: bool) -> None:
    """Serve until killed; writes front.kubeconfig beside the clusters'."""
    setup_logging("front")
    host = await KubeClient.connect(directory / "clusters/host.kubeconfig", name="")
    east = await KubeClient.connect(directory / "clusters/east.kubeconfig", name="east")
    tls, authority = serving_files(directory / "front-pki")
    config = Config(f"127.0.0.1:{port}", tls, client_ca=str(directory / "state/host/pki/ca.crt"))
    front = OneMember("east", east, [PODS, NODES] if aggregate else []).front(config, host)
    await front.start()
    import yaml

    document = yaml.safe_load((directory / "clusters/host.kubeconfig").read_text())
    cluster = document["clusters"][0]["cluster"]
    cluster["server"] = f"https://127.0.0.1:{port}"
    cluster["certificate-authority-data"] = authority.pair.cert_base64()
    (directory / "front.kubeconfig").write_text(yaml.safe_dump(document))
    await asyncio.Event().wait()


__all__ = ["NODES", "PODS", "Access", "Config", "OneMember", "Tls", "serving_files"]

if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2]), "--aggregate" in sys.argv))
