"""A type that members serve in different versions: each is followed in one that it has, and shown in those that it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from services.aggregator.clock import feed
from services.aggregator.reads import versions, watch
from services.aggregator.types import Aggregated
from tests.integration.clock_rig import eventually
from tests.integration.etcd_server import EtcdServer
from tests.integration.sim_rig import STREAM, SimRig

GADGETS = Aggregated("gadgets", "example.com", "v1", "gadgets", "Gadget", True)
NEW, OLD = "/apis/example.com/v1/gadgets", "/apis/example.com/v1beta1/gadgets"


def definition(*served: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [
                {"name": name, "served": True, "storage": name == served[0], "schema": schema} for name in served
            ],
        },
    }  # fmt: skip


def gadget(name: str, version: str) -> dict[str, Any]:
    return {"apiVersion": f"example.com/{version}", "kind": "Gadget", "metadata": {"name": name, "namespace": "default"}}


@pytest_asyncio.fixture
async def rig(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SimRig]:
    """east serves v1 and v1beta1, west v1beta1 only."""
    monkeypatch.setattr(feed, "NO_TYPE_RETRY", 0.2)
    monkeypatch.setattr(versions, "KEEP", 0.2)
    monkeypatch.setattr(watch, "RECHECK", 0.2)
    rig = SimRig(etcd, [GADGETS])
    try:
        await rig.start(["east", "west"])
        for name, served in (("east", ("v1", "v1beta1")), ("west", ("v1beta1",))):
            cluster = rig.clusters[name]
            cluster.create(definition(*served))
            await eventually(lambda c=cluster: c.core.catalog.by_collection("gadgets.example.com"))
            cluster.create(gadget(name, served[0]))
        await eventually(lambda: {one.cluster for one in rig.of(GADGETS).iter_markers()} == {"east", "west"})
        await eventually(lambda: all(rig.state(name, GADGETS)[0] == "Live" for name in rig.clusters))
        yield rig
    finally:
        await rig.close()


async def test_each_member_takes_part_in_the_versions_that_it_has(rig: SimRig) -> None:
    told = await rig.get(NEW)
    assert told.names == ["east"] and "west is left out: it does not serve gadgets.example.com in v1" in told.warnings
    told = await rig.get(OLD)
    assert told.names == ["east", "west"] and not told.warnings
    assert {one["apiVersion"] for one in told.body["items"]} == {"example.com/v1beta1"}, "as members convert them"
    one = "/namespaces/default/gadgets/west"
    assert (await rig.get(f"/apis/example.com/v1{one}")).status == 404
    assert (await rig.get(f"/apis/example.com/v1beta1{one}")).status == 200
    async with rig.watch(NEW, **STREAM) as new, rig.watch(OLD, **STREAM) as old:
        await rig.streamed(new)
        await rig.streamed(old)
        rig.clusters["west"].create(gadget("west-2", "v1beta1"))
        rig.clusters["east"].create(gadget("east-2", "v1"))
        await eventually(lambda: sorted(old.names()) == ["east", "east-2", "west", "west-2"])
        await eventually(lambda: new.names() == ["east", "east-2"])
        assert {event["object"]["apiVersion"] for event in new.events} == {"example.com/v1"}
        assert {event["object"]["apiVersion"] for event in old.events} == {"example.com/v1beta1"}
    assert not rig.of(GADGETS).state.gaps, "nothing is missing that could come"


async def test_a_member_that_gains_the_version_is_taken_in(rig: SimRig) -> None:
    """The open watch ends with 410, as when the members that a user may see change; the list that follows has all."""
    async with rig.watch(NEW, **STREAM) as watched:
        await rig.streamed(watched)
        west = rig.clusters["west"]
        west.patch("customresourcedefinitions.apiextensions.k8s.io", None, "gadgets.example.com",
                   {"spec": definition("v1beta1", "v1")["spec"]})  # fmt: skip
        for i in range(100):  # looked at with what else happens, and every ten seconds
            rig.clusters["east"].create(gadget(f"east-{i}", "v1"))
            await asyncio.sleep(0.1)
            if watched.events[-1]["type"] == "ERROR":
                break
        assert watched.events[-1]["object"]["code"] == 410
    told = await rig.get(NEW)
    assert {"east", "west"} <= set(told.names) and not told.warnings
