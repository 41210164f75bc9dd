"""Bad sources, one by one: the last good cluster stays, and `reclock clusters`, metrics and the stream say why and since when."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kube_fake import eventually, kubeconfig
from prometheus_client import REGISTRY
from provider_world import World, running

from services.discovery.hub import Hub
from services.discovery.probe import ProbeResult
from services.discovery.providers.base import Reading, found
from services.discovery.providers.files import FileProviderTask
from services.discovery.record import to_object
from services.discovery.registry import Registry

ID = "kubeconfig-file"


def write(folder: Path, config: Any, name: str = "east") -> None:
    fresh = folder.parent / f"{name}.fresh"
    fresh.write_text(config if isinstance(config, str) else json.dumps(config))
    fresh.rename(folder / name)


def good(name: str = "east", **user: Any) -> dict[str, Any]:
    return kubeconfig(name, {"server": f"https://{name}:1"}, user or {"token": "good"})


def other_user(config: dict[str, Any]) -> dict[str, Any]:
    config["contexts"][0]["context"]["user"] = "nobody"
    return config


@pytest_asyncio.fixture
async def east(tmp_path: Path) -> AsyncIterator[tuple[World, Path]]:
    """A provider that has read one good cluster, and its folder."""
    folder = tmp_path / "clusters"
    folder.mkdir()
    write(folder, good())
    world = World(ID)
    async with running(FileProviderTask(ID, [str(folder)], world.holders, rescan=0.2), world):
        await eventually(lambda: world.names == {"east"})
        yield world, folder


def gauge(more: str = "") -> float:
    return REGISTRY.get_sample_value(f"reclock_discovery_source_problems{more}", {"provider": ID}) or 0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("clusters: [", "is no YAML"),
        ("\x00\x01", "is no"),
        ("just text", "is no kubeconfig"),
        ("apiVersion: v1\nkind: Config\nclusters: []\n", "is incomplete: no contexts, users"),
        (other_user(good()), "user 'nobody' is not in users"),
        (kubeconfig("east", {"server": "no-url"}), "is no http(s) URL"),
        (good(**{"client-certificate-data": "%%%"}), "client-certificate-data is no base64"),
        (good(**{"client-certificate": "/no/such/file"}), "client-certificate /no/such/file: No such file"),
        (good(tokenFile="/no/such/token"), "tokenFile"),
        (kubeconfig("east", {"server": "https://e", "certificate-authority-data": "bm8="}), "holds no PEM"),
    ],
)  # fmt: skip
async def test_a_source_that_goes_bad_keeps_its_cluster(east: tuple[World, Path], bad: Any, reason: str) -> None:
    world, folder = east
    write(folder, bad)
    await eventually(lambda: reason in world.problem("east"))
    assert world.names == {"east"}
    assert world.token("east") == "good", "what was read last is handed out"
    status = to_object(world.registry.records["east"])["status"]
    shown = next(one for one in status["conditions"] if one["type"] == "Configured")
    assert (shown["status"], shown["reason"]) == ("False", "SourceUnreadable")
    since = datetime.fromisoformat(shown["lastTransitionTime"])
    assert datetime.now(UTC) - since < timedelta(minutes=1)
    streamed = world.registry.hub.get("east")
    assert [c.reason for c in streamed.conditions if c.type == "Configured"] == ["SourceUnreadable"]
    (problem,) = [one for one in world.registry.sources.problems() if reason in one[2]]
    assert datetime.now(UTC) - problem[3] < timedelta(minutes=1)
    assert gauge() >= 1
    assert 0 <= datetime.now(UTC).timestamp() - gauge("_since_seconds") < 60
    write(folder, good(token="again"))
    await eventually(lambda: world.token("east") == "again" and world.problem("east") == "")
    assert gauge() == gauge("_since_seconds") == 0
    assert "good" not in world.problems


async def test_a_context_without_user_is_anonymous_and_says_so_when_refused(east: tuple[World, Path]) -> None:
    world, folder = east
    config = good("west")
    del config["contexts"][0]["context"]["user"]
    write(folder, config, "west")
    await eventually(lambda: world.names == {"east", "west"})
    world.registry.probed("west", ProbeResult(True, False, "Unauthorized", "it refuses the credentials (401)"))
    unhealthy = {"cluster": "west", "reason": "Unauthorized"}
    assert REGISTRY.get_sample_value("reclock_discovery_cluster_unhealthy_reason", unhealthy) == 1
    since = REGISTRY.get_sample_value("reclock_discovery_cluster_unhealthy_since_seconds", unhealthy) or 0
    assert 0 <= datetime.now(UTC).timestamp() - since < 60
    world.registry.probed("west", ProbeResult(True, True, "ReadyzOk", uid="u", latency_us=2000))
    assert REGISTRY.get_sample_value("reclock_discovery_cluster_unhealthy_since_seconds", unhealthy) is None
    fast = {"cluster": "west", "quantile": "0.99"}
    assert REGISTRY.get_sample_value("reclock_discovery_cluster_latency_seconds", fast) == 0.002
    (folder / "west").unlink()
    await eventually(lambda: world.names == {"east"})
    assert REGISTRY.get_sample_value("reclock_discovery_cluster_latency_seconds", fast) is None


def test_two_providers_that_give_one_name() -> None:
    """Who had it first keeps it, whoever reads first after a restart; the other is reported, and gets it when it is free."""
    registry = Registry(Hub(), ["static#a", "static#b"])
    one, two = good("one"), good("two")
    registry.reading("static#a", Reading((found("east", one, "a's"),)))
    registry.reading("static#b", Reading((found("east", two, "b's"), found("west", two, "b's too"))))
    assert {name: r.provider for name, r in registry.records.items()} == {"east": "static#a", "west": "static#b"}
    ((provider, source, message, _),) = registry.sources.problems()
    assert (provider, source) == ("static#b", "b's")
    assert message == "the name 'east' is taken by static#a (a's); it is left out"
    registry.reading("static#a", Reading(()))
    registry.reading("static#b", Reading((found("east", two, "b's"), found("west", two, "b's too"))))
    assert registry.records["east"].provider == "static#b"
    assert list(registry.sources.problems()) == []
    registry.reading("static#b", Reading((found("east", two, "b's"), found("east", one, "twice"))))
    assert [message for _, _, message, _ in registry.sources.problems()] == ["the name 'east' is found twice; left out"]
