"""Sinks on real clusters: copies come, follow and go, in place of nobody's objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deploy.local.fleet import Fleet
from tests.kube.conftest import Kubectl

pytestmark = pytest.mark.asyncio(loop_scope="session")

class _Any:
    """Equal to any answer that is there."""

    def __eq__(self, other: object) -> bool:
        return other not in ("", "none")

    def __hash__(self) -> int:
        return 0


ANY = _Any()
SINKS = """
apiVersion: reclock.dev/v1alpha1
kind: Sink
metadata: {name: shared}
spec:
  version: v1
  resource: services
  selector: {matchLabels: {sync: "yes"}}
---
apiVersion: reclock.dev/v1alpha1
kind: Sink
metadata: {name: from-east}
spec:
  version: v1
  resource: configmaps
  from: east
  selector: {matchLabels: {sync: "yes"}}
  includeHost: true
"""
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: team, labels: {sync: "yes"}}
spec: {selector: {app: web}, ports: [{port: %d}]}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sinks(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    directory = tmp_path_factory.mktemp("sinks")
    async with Fleet.start(directory / "fleet", services=True, placement=False, sinker=True) as fleet:
        yield fleet


async def eventually(look: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    """Until that is so."""
    found = None
    try:
        async with asyncio.timeout(40):
            while (found := await look()) != wanted:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"{found!r} is not {wanted!r}") from None


async def test_services_and_configmaps_are_kept_equal(sinks: Fleet, kubectl: Callable[[Path], Kubectl]) -> None:
    host, east, west = (kubectl(one.kubeconfig) for one in (sinks.host, sinks.members["east"], sinks.members["west"]))

    async def field(where: Kubectl, what: str, path: str) -> str:
        answer = await where.run("get", *what.split(), "-o", f"jsonpath={path}")
        return answer.out if not answer.code else "none"

    # What a try that failed has left.
    await host.run("delete", "sinks", "--all", "--timeout=30s")
    for where in (host, east, west):
        await where.run("delete", "namespace", "team", "--ignore-not-found", "--timeout=30s")
    # A foreign Service of that name on west; on east the namespace is made.
    await west("create", "namespace", "team")
    await west("-n", "team", "create", "service", "clusterip", "web", "--tcp=1:1")
    theirs = await field(west, "service web -n team", "{.metadata.uid} {.metadata.resourceVersion}")
    await host("create", "namespace", "team")
    await host("apply", "-f", "-", stdin=SERVICE % 80)
    await host("apply", "-f", "-", stdin=SINKS)
    await eventually(lambda: field(east, "service web -n team", "{.spec.ports[0].port}"), "80")
    await eventually(lambda: field(host, "sink shared", "{.status.summary} {.status.copies} {.status.conflicts}"), "1/2 1 1")
    await eventually(lambda: field(host, "events -n default", "{.items[?(@.reason=='Conflict')].involvedObject.name}"), "shared")

    # Defaulting of the server makes no endless diff: what was written once stays as it is.
    before = await field(east, "service web -n team", "{.metadata.resourceVersion}")
    await east("-n", "team", "annotate", "service", "web", "example.com/mine=1")  # somebody's own field: seen, and kept
    await asyncio.sleep(2)
    settled = await field(east, "service web -n team", "{.metadata.resourceVersion}")
    await asyncio.sleep(2)
    assert await field(east, "service web -n team", "{.metadata.resourceVersion}") == settled != before
    assert await field(east, "service web -n team", "{.spec.clusterIP}") != await field(host, "service web -n team", "{.spec.clusterIP}")

    # Changes follow; fields that the original no longer has go; what somebody changes is put right.
    await host("apply", "-f", "-", stdin=SERVICE % 81)
    await eventually(lambda: field(east, "service web -n team", "{.spec.ports[*].port}"), "81")
    await east("-n", "team", "patch", "service", "web", "--type=merge", "-p", '{"spec":{"selector":{"app":"mine"}}}')
    await eventually(lambda: field(east, "service web -n team", "{.spec.selector.app}"), "web")
    assert await field(west, "service web -n team", "{.metadata.uid} {.metadata.resourceVersion}") == theirs

    # From a member to the others and the host.
    await east("create", "configmap", "c", "--from-literal=k=v", "--from-literal=l=w")
    await east("label", "configmap", "c", "sync=yes")
    for where in (west, host):
        await eventually(lambda it=where: field(it, "configmap c", "{.data}"), '{"k":"v","l":"w"}')  # type: ignore[misc]
    await east("patch", "configmap", "c", "--type=json", "-p", json.dumps([{"op": "remove", "path": "/data/l"}]))
    for where in (west, host):
        await eventually(lambda it=where: field(it, "configmap c", "{.data}"), '{"k":"v"}')  # type: ignore[misc]

    # A cluster that joins gets it; the sinker may be killed at any time.
    await sinks.processes["sinker"].kill9()
    await east("label", "configmap", "c", "sync-")
    await sinks.add_member("north")
    north = kubectl(sinks.members["north"].kubeconfig)
    await sinks.processes["sinker"].start()
    await sinks.processes["sinker"].wait_ready()
    await eventually(lambda: field(north, "service web -n team", "{.spec.ports[*].port}"), "81")
    for where in (west, host):
        await eventually(lambda it=where: field(it, "configmap c", "{.data}"), "none")  # type: ignore[misc]

    # A cluster that is taken away for good is emptied before its access is dropped.
    sinks.layout.member_kubeconfig("north").unlink()
    await eventually(lambda: field(host, "cluster north", "{.status.leavingSince}"), ANY)
    front = kubectl(sinks.layout.kubeconfig)
    await front("create", "--raw", "/apis/reclock.dev/v1alpha1/clusters/north/forget", "-f", "-", stdin="{}")
    await eventually(lambda: field(north, "service web -n team", "{.metadata.name}"), "none")
    await eventually(lambda: field(host, "cluster north", "{.metadata.name}"), "none")

    # The Sink goes, and with it its copies, and nothing else.
    await host("delete", "sink", "shared", "from-east", "--wait=true")
    assert await field(east, "service web -n team", "{.metadata.name}") == "none"
    assert await field(west, "service web -n team", "{.metadata.uid} {.metadata.resourceVersion}") == theirs
    assert await field(host, "service web -n team", "{.spec.ports[*].port}") == "81"
