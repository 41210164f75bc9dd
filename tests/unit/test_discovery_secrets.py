"""Provider `kubeconfig-secret` on a fake apiserver: joins, leaves, bad Secrets, a cluster that is away."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kube_collection import Collection, CollectionFake
from kube_fake import KubeFake, eventually, kubeconfig
from provider_world import World, running

from services.common.config import ConfigError
from services.common.kube.client import KubeClient
from services.discovery.config import SECRET_LABEL, SecretProvider
from services.discovery.providers import objects
from services.discovery.providers.make import make
from services.discovery.record import Record

ID = "kubeconfig-secret"
LABELS = {SECRET_LABEL: "true"}


def secret(name: str, token: str = "t", **user: Any) -> dict[str, Any]:
    """Data of a Secret with the kubeconfig of a cluster."""
    config = kubeconfig(name, {"server": f"https://{name}:1"}, {"token": token, **user})
    return {"kubeconfig": base64.b64encode(json.dumps(config).encode()).decode()}


@pytest.fixture
def secrets() -> Collection:
    return Collection("/api/v1", "secrets", "Secret")


@asynccontextmanager
async def following(kube: KubeFake, tmp_path: Path, **settings: Any) -> AsyncIterator[World]:
    file = tmp_path / "host"
    file.write_text(json.dumps(kube.kubeconfig()))
    world = World(ID)
    provider = make(ID, SecretProvider(kubeconfig=str(file), **settings), None, world.holders)
    async with running(provider, world):
        yield world


async def test_join_change_and_leave(secrets: Collection, tmp_path: Path) -> None:
    secrets.put("fleet", "east", labels=LABELS, data=secret("east"))
    secrets.put("fleet", "other", data=secret("other"))
    async with CollectionFake(secrets) as kube, following(kube, tmp_path) as world:
        await eventually(lambda: world.names == {"east"})
        assert world.registry.records["east"].source == "Secret fleet/east#kubeconfig"
        secrets.put("fleet", "west", labels=LABELS, data=secret("west"))
        await eventually(lambda: world.names == {"east", "west"})
        engaged = world.registry.records["east"].engaged_at
        secrets.put("fleet", "east", labels=LABELS, data=secret("east", token="fresh"))
        await eventually(lambda: world.token("east") == "fresh")
        assert world.registry.records["east"].engaged_at == engaged
        # The label goes, the key goes, the Secret goes: each is a leave.
        secrets.put("fleet", "east", labels={}, data=secret("east"))
        await eventually(lambda: world.names == {"west"})
        secrets.put("fleet", "west", labels=LABELS, data={"note": "eA=="})
        await eventually(lambda: world.names == set())
        secrets.put("fleet", "west", labels=LABELS, data=secret("west"))
        await eventually(lambda: world.names == {"west"})
        secrets.remove("fleet", "west")
        await eventually(lambda: world.names == set())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"kubeconfig": "***"}, "is no base64"),
        ({"kubeconfig": ""}, "is empty"),
        ({"kubeconfig": base64.b64encode(b"clusters: [").decode()}, "is no YAML"),
        (secret("east", tokenFile="/etc/hostname"), "tokenFile is not allowed here"),
        (secret("east", exec={"command": "id"}), "exec is not allowed here"),
        (secret("east", **{"auth-provider": {"name": "gcp", "config": {"cmd-path": "id"}}}), "auth-provider is not"),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_keeps_the_last(
    secrets: Collection, tmp_path: Path, data: dict[str, str], reason: str
) -> None:
    secrets.put("fleet", "east", labels=LABELS, data=secret("east"))
    secrets.put("fleet", "never", labels=LABELS, data=data)
    async with CollectionFake(secrets) as kube, following(kube, tmp_path) as world:
        await eventually(lambda: world.names == {"east"})
        assert "Secret fleet/never#kubeconfig: kubeconfig " in world.problems
        assert reason in world.problems
        secrets.put("fleet", "east", labels=LABELS, data=data)
        await eventually(lambda: reason in world.problem("east"))
        assert world.token("east") == "t"
        secrets.put("fleet", "east", labels=LABELS, data=secret("east", token="well"))
        await eventually(lambda: world.token("east") == "well")
        assert world.problem("east") == ""


async def test_the_same_name_in_two_namespaces(secrets: Collection, tmp_path: Path) -> None:
    for namespace in ("a", "b"):
        secrets.put(namespace, "east", labels=LABELS, data=secret(f"east-{namespace}"))
    secrets.put("a", "with.dots", labels=LABELS, data=secret("dots"))
    async with CollectionFake(secrets) as kube, following(kube, tmp_path) as world:
        await eventually(lambda: len(world.names) == 3)
        other = next(name for name in world.names if name.startswith("b-east-"))
        assert world.names == {"east", "with-dots", other}
        assert "the name 'east' is taken by Secret a/east" in world.problems
        # Who has a name keeps it: the other does not become `east` when the first leaves.
        secrets.remove("a", "east")
        await eventually(lambda: "east" not in world.names)
        secrets.put("b", "other", labels=LABELS, data=secret("other"))
        await eventually(lambda: "other" in world.names)
        assert other in world.names


async def test_one_namespace_other_label_and_key(secrets: Collection, tmp_path: Path) -> None:
    data = {"value": secret("x")["kubeconfig"]}
    for namespace in ("a", "b"):
        secrets.put(namespace, f"in-{namespace}", labels={"mine": "true"}, data=data)
    settings = {"namespace": "b", "label": "mine", "key": "value"}
    async with CollectionFake(secrets) as kube, following(kube, tmp_path, **settings) as world:
        await eventually(lambda: world.names == {"in-b"})


async def test_a_cluster_that_is_away_takes_nobody_along(
    secrets: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "GRACE", 0.0)
    secrets.put("fleet", "east", labels=LABELS, data=secret("east"))
    async with CollectionFake(secrets) as kube, following(kube, tmp_path) as world:
        await eventually(lambda: world.names == {"east"})
        secrets.fail(500)
        await eventually(lambda: "out of order" in world.problems)
        assert world.names == {"east"}
        assert "out of order" in world.problem("east")
        secrets.fail(0)
        secrets.put("fleet", "west", labels=LABELS, data=secret("west"))
        await eventually(lambda: world.names == {"east", "west"})
        await eventually(lambda: world.problems == "")


async def test_before_the_first_reading_nothing_leaves(
    secrets: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "FIRST", 0.0)
    monkeypatch.setattr(objects, "LOOK", 0.05)
    secrets.broken = 503
    secrets.put("fleet", "east", labels=LABELS, data=secret("east"))
    async with CollectionFake(secrets) as kube, following(kube, tmp_path) as world:
        for name in ("east", "gone"):
            world.registry.restore(Record(name, ID, f"Secret fleet/{name}#kubeconfig"))
        await eventually(lambda: "out of order" in world.problems)
        assert world.names == {"east", "gone"}
        assert not world.registry.hub.complete.is_set()
        assert world.registry.unread() == [ID]
        secrets.fail(0)
        await eventually(lambda: world.names == {"east"})
        assert world.registry.hub.complete.is_set()
        assert world.registry.unread() == []


async def test_its_kubeconfig_may_come_later(secrets: Collection, tmp_path: Path) -> None:
    secrets.put("fleet", "east", labels=LABELS, data=secret("east"))
    file = tmp_path / "later"
    world = World(ID)
    provider = make(ID, SecretProvider(kubeconfig=str(file)), None, world.holders)
    async with CollectionFake(secrets) as kube, running(provider, world):
        await eventually(lambda: "No such file" in world.problems)
        assert not world.registry.hub.complete.is_set()
        file.write_text(json.dumps(kube.kubeconfig()))
        await eventually(lambda: world.names == {"east"})


async def test_the_host_is_read_and_left_open(secrets: Collection) -> None:
    secrets.put("fleet", "east", labels=LABELS, data=secret("east"))
    async with CollectionFake(secrets) as kube:
        host = await KubeClient.connect(kube.kubeconfig(), name="")
        world = World(ID)
        async with running(make(ID, SecretProvider(), host, world.holders), world):
            await eventually(lambda: world.names == {"east"})
        assert (await host.request("GET", "/readyz")).status == 200
        await host.close()


def test_without_a_host_its_kubeconfig_is_needed() -> None:
    with pytest.raises(ConfigError, match="kubeconfig-secret: kubeconfig is needed"):
        make(ID, SecretProvider(), None, dict)
