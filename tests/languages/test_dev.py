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
    assert one.stop(120) == 0
    assert "[dev] stopping" in one.lines()
    assert left_behind(f"{tmp_path}/reclock-dev") == []
    assert not list(tmp_path.glob("reclock-dev-*"))
