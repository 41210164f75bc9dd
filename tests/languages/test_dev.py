"""`reclock dev`: another provider is another word. Starts a host and the services of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.languages.conftest import Running, World

LOGGER = Path(__file__).resolve().parents[2] / "examples" / "python" / "configmap_logger.py"
KIND = """#!/bin/sh
case "$2" in
  clusters) ls "{folder}" ;;
  kubeconfig) cat "{folder}/$4" ;;
esac
"""


def left_behind(directory: str) -> list[str]:
    """Commands of processes that were started for a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has ended meanwhile
            if directory in command:
                found.append(command)
    return found


def ends_clean(one: Running, folder: Path) -> None:
    """SIGTERM ends it in order; no process and no file of its fleet is left."""
    assert one.stop(120) == 0
    assert "[dev] stopping" in one.lines()
    assert left_behind(f"{folder}/reclock-dev") == []
    assert not list(folder.glob("reclock-dev-*"))


@pytest.mark.timeout(600)
def test_the_provider_kind(world: World, start: Callable[..., Running], tmp_path: Path) -> None:
    folder = tmp_path / "clusters"
    folder.mkdir()
    for name, member in world.fleet.members.items():
        (folder / name).write_bytes(member.kubeconfig.read_bytes())
    command = tmp_path / "kind"
    command.write_text(KIND.format(folder=folder))
    command.chmod(0o755)
    one = start(
        "dev",
        [sys.executable, "-m", "reclock.cli", "dev", "--provider", "kind", "--set", f"command={command}", str(LOGGER)],
        TMPDIR=str(tmp_path),
    )
    there = {f"{name} default/kube-root-ca.crt ca.crt" for name in world.fleet.members}
    one.until(lambda lines: there <= set(lines), 240)
    (folder / "west").unlink()
    world.kubectl("east", "create", "configmap", "later")
    one.until(lambda lines: "east default/later -" in lines)
    ends_clean(one, tmp_path)


@pytest.mark.timeout(600)
def test_the_word_for_the_demo_fleet(start: Callable[..., Running], tmp_path: Path) -> None:
    # In a directory of its own: where a demo runs already, that one would be used.
    one = start(
        "dev", [sys.executable, "-m", "reclock.cli", "dev", "--provider", "demo", "--members", "north", str(LOGGER)],
        folder=tmp_path, TMPDIR=str(tmp_path),
    )  # fmt: skip
    one.until(lambda lines: "north default/kube-root-ca.crt ca.crt" in lines, 240)
    ends_clean(one, tmp_path)
