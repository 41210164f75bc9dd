"""The Python examples, each with a fleet and a service in this process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from reclock.cli import program
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.testing import World
from reclock.testing._http import Handler

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
CLUSTERS = "reclock.dev/v1alpha1/clusters"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def configmap(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"b": "2", "a": "1"}}


async def test_the_logger(capsys: Any) -> None:
    logger = load("configmap_logger").configmap_logger
    async with World(logger, clusters=["east"]) as world:
        world.fleet["east"].put(configmap("x"))
        assert (await world.reconcile("east", "n", "x")).ok
        assert (await world.reconcile("east", "n", "y")).ok
    assert capsys.readouterr().out.splitlines() == ["east n/x a,b", "east n/y gone"]


async def test_the_image_report_asks_an_index_over_all_clusters(capsys: Any) -> None:
    report = load("image_report")
    async with World(report.image_report, clusters=["east", "west"]) as world:
        world.fleet.host.put({**configmap("r", **{report.LABEL: "true"}), "data": {"image": "nginx:1"}})
        pods = [("east", "a"), ("west", "b"), ("east", "c")]
        world.service.indexes["image", "nginx:1"] = [pb.IndexedObject(cluster=cluster, namespace="n", name=name) for cluster, name in pods]
        registered = (await world.service.worker()).register
        assert [(one.name, one.path) for one in registered.indexes] == [("image", "spec.containers[*].image")]
        for _ in range(2):
            assert (await world.reconcile("", "n", "r", source="report")).requeue_after == report.SECONDS
        found = world.fleet.host.get("v1/configmaps", "r", "n")
        assert found is not None and found["metadata"]["annotations"] == {report.PODS: "east=2 west=1"}
    assert capsys.readouterr().out.splitlines() == ["nginx:1: east=2 west=1"]


async def test_the_copier(capsys: Any) -> None:
    copier = load("configmap_copier").configmap_copier
    label = "examples.reclock.dev/copy"
    async with World(copier, clusters=["east", "west"]) as world:
        fleet = world.fleet
        fleet.host.put(configmap("x", **{label: "true"}))
        fleet["west"].put(configmap("own"))
        assert (await world.reconcile("", "n", "x", source="configmap")).ok
        assert fleet["west"].get("v1/configmaps", "x", "n")["data"] == {"a": "1", "b": "2"}  # type: ignore[index]
        fleet.join("north")
        assert (await world.reconcile("", "", "north", source="cluster")).ok
        assert fleet["north"].get("v1/configmaps", "x", "n") is not None
        fleet.host.put(configmap("x"))
        assert (await world.reconcile("", "n", "x", source="configmap")).ok
        assert (await world.reconcile("", "n", "own", source="configmap")).ok
        assert [one["metadata"]["name"] for one in fleet["west"].list("v1/configmaps")] == ["own"]
    printed = sorted(capsys.readouterr().out.splitlines())
    assert printed == [
        "copied n/x to east", "copied n/x to north", "copied n/x to west",
        "removed n/x from east", "removed n/x from north", "removed n/x from west",
    ]  # fmt: skip


async def test_an_identity_for_each_cluster(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    identity = load("cluster_identity").cluster_identity
    serve = Handler._serve

    async def minting(self: Handler, request: Any) -> Any:
        if not request.path.endswith("/token"):
            return await serve(self, request)
        from aiohttp import web

        return web.json_response({"status": {"token": f"minted at {request.path}"}}, status=201)

    monkeypatch.setattr(Handler, "_serve", minting)
    async with World(identity, clusters=["east"]) as world:
        done = await world.reconcile("", "", "east")
        assert done.ok and done.requeue_after == 1800
        secret = world.fleet["east"].get("v1/secrets", "fleet-identity", "fleet-identities")
        assert secret is not None and secret["data"]["token"]
        writes = len(world.fleet["east"].writes)
        again = await world.reconcile("", "", "east")
        assert again.ok and 1790 < (again.requeue_after or 0) <= 1800
        assert len(world.fleet["east"].writes) == writes, "a good token is left alone"
        world.fleet.leave("east")
        assert (await world.reconcile("", "", "east")).ok
        assert world.fleet.host.list("v1/serviceaccounts") == []
    assert "has left" in capsys.readouterr().out


@pytest.mark.parametrize("document", ["README.md", "docs/sdk.md"])
async def test_what_the_documents_show_runs(document: str, tmp_path: Path, capsys: Any) -> None:
    text = (EXAMPLES.parents[1] / document).read_text()
    code = text.split("```python\n")[1].split("```")[0].replace("{...}", repr(configmap("copy")))
    (tmp_path / "shown.py").write_text(code)
    module = program.load(tmp_path / "shown.py")
    (shown,) = program.controllers(module)
    async with World(shown, clusters=["east", "west"]) as world:
        world.fleet["east"].put(configmap("x"))
        for name in ("x", "y"):
            done = await world.reconcile("east", "n", name)
            assert done.ok, done.error
    if document == "README.md":
        assert capsys.readouterr().out.splitlines() == ["east/n/x ['a', 'b']", "east/n/y is gone"]
    del sys.modules["shown"]
