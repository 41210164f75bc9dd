"""`reclock queue` against a service in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from sdk_tools import until
from typer.testing import CliRunner

from reclock._controller import duration
from reclock.cli import queue
from reclock.cli.api import CliError
from reclock.cli.app import app
from reclock.cli.output import Format
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.testing import FakeFleet, FakeService
from tests.integration.work_rig import for_configmaps, rig

EAST = pb.Queue(
    controller="c", cluster="east", depth=7, delayed=1, processing=2, weight=2.0, cap=3, share=0.25, retries=4, served=12,
    wait=duration(6), work=duration(25), longest=duration(130), synced=True,
    wait_p50=duration(0.02), wait_p99=duration(0.5), work_p50=duration(2.5),
)  # fmt: skip


def test_a_row() -> None:
    cells = dict(zip(queue.COLUMNS, queue._row(EAST), strict=True))
    assert (cells["WAIT50"], cells["WAIT99"]) == ("20ms", "500ms") and cells["LONGEST"] == "2m"
    assert (cells["WORK50"], cells["WORK99"]) == ("2.5s", "-")
    assert cells["SHARE"] == "25%" and cells["STATE"] == "ready"
    quiet = dict(zip(queue.COLUMNS, queue._row(pb.Queue(controller="c", paused=True)), strict=True))
    assert (quiet["CLUSTER"], quiet["WAIT99"], quiet["WORK50"], quiet["LONGEST"]) == ("(host)", "-", "-", "-")
    assert quiet["STATE"] == "paused" and queue._row(pb.Queue(controller="c"))[-1] == "listing"


async def test_list_watch_and_change(tmp_path: Path, capsys: Any) -> None:
    async with FakeFleet() as fleet, FakeService() as service:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(fleet.kubeconfig))
        service.queues.queues.append(EAST)
        service.queues.controllers.append(pb.Controller(name="c", problems=["east has no widgets"]))

        async def run(work: queue.Work) -> None:
            await queue._run(service.address, str(path), work)

        await run(lambda queues: queue.list_queues(queues, "", Format.table))
        assert "c            east" in (text := capsys.readouterr().out) and "east has no widgets" in text
        await run(lambda queues: queue.list_queues(queues, "", Format.json))
        assert '"depth": "7"' in capsys.readouterr().out
        task = asyncio.create_task(run(lambda queues: queue.watch_queues(queues, "", 0.1)))
        shown: list[str] = []
        await until(lambda: shown.append(capsys.readouterr().out) or "".join(shown).count("CONTROLLER") >= 2)
        task.cancel()
        await asyncio.wait({task})
        await run(lambda queues: queue.update(queues, "c", "east", paused=True))
        await run(lambda queues: queue.update(queues, "", "east", weight=0.5))
        first, second = service.updates
        assert (first.controller, first.cluster, first.paused) == ("c", "east", True) and not first.HasField("cap")
        assert second.weight == 0.5 and not second.HasField("paused")


async def test_a_reconciler_that_is_away(tmp_path: Path) -> None:
    async with FakeFleet() as fleet:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(fleet.kubeconfig))
        with pytest.raises(CliError, match=r"is the reconciler at 127\.0\.0\.1:1\?"):
            await queue._run("127.0.0.1:1", str(path), lambda queues: queue.list_queues(queues, "", Format.table))


def test_options_in_the_wrong_place_are_not_ignored() -> None:
    result = CliRunner().invoke(app, ["queue", "-c", "mine", "pause", "east"])
    assert result.exit_code == 2 and "behind pause" in result.output


@pytest.mark.parametrize(("command", "value", "said"), [
    ("weight", "0", "weight: 0: allowed is 1e-06 to 1e+06"), ("weight", "-1", "weight: -1: allowed is 1e-06 to 1e+06"),
    ("weight", "nan", "weight: nan: allowed is 1e-06 to 1e+06"), ("cap", "-1", "cap: -1: allowed is 1 to 1000000"),
])  # fmt: skip
async def test_what_is_not_allowed_is_refused_in_one_line(tmp_path: Path, command: str, value: str, said: str) -> None:
    async with FakeFleet() as fleet, rig("east") as it:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(fleet.kubeconfig))
        argv = ["queue", command, "east", value, "--reconciler", it.server.bound, "--kubeconfig", str(path)]
        result = await asyncio.to_thread(CliRunner().invoke, app, argv)
    assert result.exit_code == 1
    assert result.output.splitlines() == [f"reclock: INVALID_ARGUMENT: {said}"]


async def test_weight_and_cap_are_changed_at_once(tmp_path: Path) -> None:
    async with FakeFleet() as fleet, rig("east", lease=60) as it:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(fleet.kubeconfig))
        for number in range(5):
            it.clusters.clusters["east"].put("configmaps", "a", f"{number}")
        worker = it.worker(for_configmaps(max_in_flight=4))
        await worker.requests(1)  # a quarter of its room, and none of them is answered

        async def run(*argv: str) -> str:
            at = ["--reconciler", it.server.bound, "--kubeconfig", str(path)]
            result = await asyncio.to_thread(CliRunner().invoke, app, ["queue", *argv, *at])
            assert result.exit_code == 0, result.output
            return result.output

        assert "cluster east of c: weight 2.5" in await run("weight", "east", "2.5", "-c", "c")
        assert len(worker.of("request")) == 1
        assert "cluster east of every controller: cap 3" in await run("cap", "east", "3")
        await worker.requests(3)
        shown = next(line.split() for line in (await run()).splitlines() if line.startswith("c "))
        assert dict(zip(queue.COLUMNS, shown, strict=False)) | {"WAITING": "2", "RUNNING": "3", "CAP": "3", "WEIGHT": "2.5"} == dict(
            zip(queue.COLUMNS, shown, strict=False)
        )
        await worker.close()
