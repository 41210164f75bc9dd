"""`reclock run` and `reclock dev`, with a fleet and a service in this process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sdk_tools import until

from reclock import Fleet
from reclock.cli import dev as dev_command
from reclock.cli import program
from reclock.cli.api import CliError
from reclock.cli.children import Child
from reclock.cli.dev import Dev, provider
from reclock.cli.each_cluster import EachCluster
from reclock.testing import FakeFleet, FakeService

CONTROLLER = """
from reclock import Request, controller

@controller(for_="v1/configmaps")
async def logger(request: Request) -> None:
    print("VERSION", request, flush=True)

if __name__ == "__main__":
    raise SystemExit("not when it is loaded")
"""
SHOW = "echo cluster=$RECLOCK_CLUSTER; grep server: $KUBECONFIG; trap 'echo bye; exit 3' TERM; sleep 100 & wait"


async def test_one_process_for_each_cluster_that_is_there(tmp_path: Path) -> None:
    said: list[str] = []
    async with FakeFleet("east", "west") as fake, Fleet.connect(fake.kubeconfig) as fleet:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(fake.kubeconfig))
        work = EachCluster(["sh", "-c", SHOW], str(kubeconfig), said.append)
        task = asyncio.create_task(work.run(fleet, ""))
        for name in ("east", "west"):
            await until(lambda name=name: f"[{name}]     server: {fake.url}/clusters/{name}" in said)
            assert f"[{name}] cluster={name}" in said
        fake.join("north")
        await until(lambda: "[north] cluster=north" in said)
        fake.join("north", region="eu")
        fake.leave("east")
        await until(lambda: "[east] stopped (code 3)" in said)
        assert "[east] bye" in said
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert {"[west] stopped (code 3)", "[north] stopped (code 3)"} <= set(said)
    assert said.count("[north] started") == 1


async def test_a_process_that_ends_is_started_again_later_each_time(tmp_path: Path) -> None:
    said: list[str] = []
    async with FakeFleet("east") as fake, Fleet.connect(fake.kubeconfig) as fleet:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(fake.kubeconfig))
        work = EachCluster(["sh", "-c", "exit 7"], str(kubeconfig), said.append, first=0.05)
        task = asyncio.create_task(work.run(fleet, ""))
        await until(lambda: said.count("[east] ended (code 7)") == 3)
        task.cancel()
        await asyncio.wait({task})
    pauses = [line.split()[-2] for line in said if "again" in line]
    assert pauses[:2] == ["0.05", "0.1"]


async def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    said: list[str] = []
    async with FakeFleet("east") as fake, Fleet.connect(fake.kubeconfig) as fleet:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(fake.kubeconfig))
        task = asyncio.create_task(EachCluster(["/no/such"], str(kubeconfig), said.append).run(fleet, ""))
        await until(lambda: any("cannot start" in line for line in said))
        task.cancel()
        await asyncio.wait({task})


async def test_a_child_that_does_not_heed_is_killed_with_all_it_started() -> None:
    lines: list[str] = []
    script = "trap '' TERM; sleep 100 & echo $!; while true; do sleep 1; done"
    child = await Child.start(["sh", "-c", script], environment={}, lines=lines.append)
    await until(lambda: lines)
    assert await child.stop(0.3) == -9
    await until(lambda: not os.path.exists(f"/proc/{lines[0]}") or "Z" in Path(f"/proc/{lines[0]}/stat").read_text())


async def test_dev_runs_a_file_anew_when_it_is_saved(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "controller.py"
    path.write_text(CONTROLLER.replace("VERSION", "first"))
    said: list[str] = []
    async with FakeFleet("east") as fake, FakeService() as service:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(fake.kubeconfig))
        dev = Dev([path], said.append)
        dev._environment = {"RECLOCK_KUBECONFIG": str(kubeconfig), "RECLOCK_RECONCILER": service.address}
        task = asyncio.create_task(dev._controllers())
        assert (await service.ask("east", "n", "a", timeout=60)).ok
        path.write_text("syntax error(")
        os.utime(path, (1, 1))
        await until(lambda: "it has ended; save a file to start it anew" in said)
        path.write_text(CONTROLLER.replace("VERSION", "second"))
        assert (await service.ask("east", "n", "b", timeout=60)).ok
        task.cancel()
        await asyncio.wait({task})
    printed = capsys.readouterr().out
    assert "first east/n/a" in printed and "SyntaxError" in printed and "second east/n/b" in printed
    assert "controller.py was saved: starting anew" in said


def test_a_provider_is_a_word_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/home/me/config")
    monkeypatch.delenv("RECLOCK_KUBECONFIG", raising=False)
    assert provider("kind", []) == {"type": "kind"}
    assert provider("kubeconfig-file", []) == {"type": "kubeconfig-file", "paths": ["/home/me/config"]}
    assert provider("kubeconfig-file", ["paths=/x"])["paths"] == ["/x"]
    given = ["address=127.0.0.1:7500", "interval=2", 'tls={"ca": "x"}']
    assert provider("remote", given) == {
        "type": "remote", "address": "127.0.0.1:7500", "interval": 2, "tls": {"ca": "x"},
    }  # fmt: skip
    with pytest.raises(CliError, match="key=value"):
        provider("kind", ["oops"])


def test_the_fleet_for_a_provider_has_no_members_of_its_own() -> None:
    dev = Dev([], print)
    command = dev._fleet_command(Path("/d"), "kind", [], "east,west")
    assert command[command.index("--members") + 1] == ""
    assert json.loads(command[command.index("--provider") + 1]) == {"type": "kind"}
    assert "east,west" in dev._fleet_command(Path("/d"), "demo", [], "east,west")


async def test_dev_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CliError, match="no such file"):
        await dev_command.dev([tmp_path / "none.py"], "kind", [], "", False)
    path = tmp_path / "c.py"
    path.write_text(CONTROLLER)
    monkeypatch.setattr(dev_command, "CHECKOUT", tmp_path)
    with pytest.raises(CliError, match="in a checkout"):
        await dev_command.dev([path], "demo", [], "", False)
    with pytest.raises(CliError, match="needs the command none-such, which is not found"):
        await dev_command.dev([path], "kind", ["command=none-such"], "", False)


def test_a_file_without_controllers(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    assert program.main([str(path)]) == 1
    assert "no controller there" in capsys.readouterr().err
    sys.modules.pop("empty")
