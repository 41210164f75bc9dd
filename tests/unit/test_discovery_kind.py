"""Provider `kind` with a stand-in for the command: it prints files of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kube_fake import eventually, kubeconfig
from provider_world import World, running

from services.discovery.config import KindProvider
from services.discovery.probe import ProbeResult
from services.discovery.providers.base import Provider, Rereads
from services.discovery.providers.kind import CommandError, run_command
from services.discovery.providers.make import make

ID = "kind"
STAND_IN = """#!/bin/sh
cd "{folder}" || exit 9
echo "$*" >> calls
[ -f broken ] && {{ cat broken >&2; exit 1; }}
[ -f hangs ] && {{ sleep 600 & echo $! > sleeper; wait; }}
case "$2" in
  clusters) [ -f noise ] && cat noise; ls clusters; [ "$(ls clusters)" ] || echo "No kind clusters found." >&2;;
  kubeconfig) cat "clusters/$4" || exit 1;;
esac
"""


class Kind:
    """The stand-in, and the provider that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "clusters").mkdir()
        self.command = folder / "kind"
        self.command.write_text(STAND_IN.format(folder=folder))
        self.command.chmod(0o755)
        self.world = World(ID)

    def add(self, name: str, token: str = "t") -> None:
        config = kubeconfig(f"kind-{name}", {"server": "https://127.0.0.1:1"}, {"token": token})
        self.write(f"clusters/{name}", json.dumps(config))

    def write(self, name: str, text: str) -> None:
        (self.folder / "fresh").write_text(text)
        (self.folder / "fresh").rename(self.folder / name)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def provider(self, **settings: Any) -> Provider:
        settings = {"interval": 0.1, "refresh": 3600.0, "command": str(self.command), **settings}
        return make(ID, KindProvider(**settings), None, self.world.holders)


@pytest.fixture
def kind(tmp_path: Path) -> Kind:
    return Kind(tmp_path)


async def test_clusters_come_and_go(kind: Kind) -> None:
    async with running(kind.provider(), kind.world) as world:
        await eventually(world.registry.hub.complete.is_set)
        assert world.names == set()
        kind.add("dev")
        kind.add("with.dot")
        await eventually(lambda: world.names == {"dev", "with-dot"})
        assert world.problems == ""
        seen = len(kind.calls())
        await eventually(lambda: len(kind.calls()) > seen + 2)
        kind.remove("clusters/dev")
        await eventually(lambda: world.names == {"with-dot"})
    # Without a change there is nothing to read again, and nothing to tell.
    assert sorted(call for call in kind.calls() if "kubeconfig" in call) == [
        "get kubeconfig --name dev", "get kubeconfig --name with.dot",
    ]  # fmt: skip
    assert len(world.readings) <= 4


async def test_a_cluster_made_anew_gets_its_new_credentials(kind: Kind) -> None:
    kind.add("dev")
    async with running(kind.provider(refresh=0.1), kind.world) as world:
        await eventually(lambda: world.token("dev") == "t")
        kind.add("dev", token="other")
        await eventually(lambda: world.token("dev") == "other")


async def test_refused_credentials_are_read_again_at_once(kind: Kind) -> None:
    kind.add("dev")
    kind.add("other")
    provider = kind.provider(refresh=3600)
    async with running(provider, kind.world) as world:
        await eventually(lambda: world.names == {"dev", "other"})
        kind.add("dev", token="anew")
        told: list[tuple[str, str]] = []
        world.registry.refused = lambda ident, source: told.append((ident, source))
        world.registry.probed("dev", ProbeResult(True, False, "NotReady"))
        assert told == []
        world.registry.probed("dev", ProbeResult(True, False, "Unauthorized"))
        assert told == [(provider.id, "kind dev#")]
        assert isinstance(provider, Rereads)
        provider.refused("kind dev#")
        await eventually(lambda: world.token("dev") == "anew")
    assert kind.calls().count("get kubeconfig --name other") == 1


async def test_names_that_fall_together(kind: Kind) -> None:
    kind.add("a.b")
    kind.add("a-b")
    async with running(kind.provider(), kind.world) as world:
        await eventually(lambda: len(world.names) == 2)
        assert "a-b" in world.names
        assert "the name 'a-b' is taken by kind a" in world.problems


async def test_failures_keep_the_last(kind: Kind) -> None:
    kind.add("dev")
    async with running(kind.provider(timeout=0.5), kind.world) as world:
        await eventually(lambda: world.names == {"dev"})
        kind.write("broken", "Cannot connect\nthe daemon is away\n")
        await eventually(lambda: "kind get clusters: exit code 1: the daemon is away" in world.problems)
        assert "the daemon is away" in world.problem("dev")
        kind.remove("broken")
        await eventually(lambda: world.problems == "" and world.problem("dev") == "")
        kind.write("noise", "WARNING: a new version of kind is available\n")
        await eventually(lambda: "which is no name of a cluster" in world.problems)
        kind.remove("noise")
        await eventually(lambda: world.problems == "")
        kind.write("hangs", "")
        await eventually(lambda: "no answer in 0.5 s" in world.problems)
        assert world.names == {"dev"}
        kind.remove("hangs")
        await eventually(lambda: world.problems == "")


async def test_one_unreadable_kubeconfig_hurts_no_other(kind: Kind) -> None:
    kind.write("clusters/bad", "clusters: [")
    kind.add("good")
    async with running(kind.provider(refresh=0.1), kind.world) as world:
        await eventually(lambda: world.names == {"good"})
        assert "kind bad#: kind get kubeconfig: is no YAML" in world.problems
        kind.write("clusters/good", "clusters: [")
        await eventually(lambda: "is no YAML" in world.problem("good"))
        kind.add("good", token="again")
        await eventually(lambda: world.token("good") == "again" and world.problem("good") == "")


async def test_without_the_command_nothing_is_read(kind: Kind) -> None:
    async with running(kind.provider(command="/does/not/exist"), kind.world) as world:
        await eventually(lambda: "cannot be run: No such file" in world.problems)
        assert not world.registry.hub.complete.is_set()


async def test_a_hanging_command_leaves_no_process(kind: Kind) -> None:
    kind.write("hangs", "")
    with pytest.raises(CommandError, match="no answer"):
        await run_command([str(kind.command), "get", "clusters"], 1.0)
    sleeper = int((kind.folder / "sleeper").read_text())
    await eventually(lambda: not alive(sleeper))


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


async def test_too_much_output_is_refused() -> None:
    with pytest.raises(CommandError, match="more than 4 MiB"):
        await run_command(["head", "-c", "9000000", "/dev/zero"], 20.0)
