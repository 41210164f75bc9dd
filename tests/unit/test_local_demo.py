"""Settings of the demo, the fleet's directory, and commands to a fleet that does not run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
import yaml

from deploy.local import ctl, demo
from deploy.local.ask import ask
from deploy.local.commands import HOST_CONTROLLERS
from deploy.local.engines import default_engine
from deploy.local.errors import FleetFailed
from deploy.local.layout import DirectoryInUse, Layout
from deploy.local.nodes import STAGES_DIR, PodLog, node, write_kwok_config
from deploy.local.settings import Settings


def test_members_by_count_or_by_name() -> None:
    assert Settings.read({}).members == ("east", "west")
    assert Settings.read({"MEMBERS": "6"}).members == (
        "east",
        "west",
        "north",
        "south",
        "central",
        "member-6",
    )
    assert Settings.read({"MEMBERS": "paris, oslo"}).members == ("paris", "oslo")
    assert Settings.read({"DETACH": "1"}).detach and not Settings.read({"DETACH": "", "ENGINE": ""}).detach


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"MEMBERS": "0"}, "MEMBERS=0: a count from 1 to 20"),
        ({"MEMBERS": "21"}, "MEMBERS=21: a count from 1 to 20"),
        ({"MEMBERS": "a,a"}, "'a' is no name for a member"),
        ({"MEMBERS": "host"}, "'host' is no name for a member"),
        ({"MEMBERS": "East"}, "'East' is no name for a member"),
        ({"DETACH": "maybe"}, "DETACH=maybe: allowed are 1 and 0"),
        ({"ENGINE": "docker"}, "ENGINE=docker: allowed are kube, sim"),
    ],
)
def test_bad_settings_name_the_variable_and_what_it_allows(environment: dict[str, str], said: str) -> None:
    with pytest.raises(FleetFailed) as refused:
        Settings.read(environment)
    assert said in str(refused.value)


@pytest.mark.parametrize(("asked", "there", "engine"), [
    ("", True, "kube"), ("", False, "sim"), ("sim", True, "sim"),
])  # fmt: skip
def test_the_demo_takes_the_engine_that_is_there_and_says_so(
    asked: str, there: bool, engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "default_engine", lambda: "kube" if there else "sim")
    monkeypatch.setattr(demo, "ensure_binaries", lambda: None)
    assert demo.choose_engine(Settings.read({"ENGINE": asked}), print).engine == engine
    assert f"engine: {engine} (" in capsys.readouterr().out


@pytest.mark.parametrize(("go", "engine"), [("go1.26.1", "kube"), ("go1.19.8", "sim"), ("", "sim")])
def test_missing_binaries_are_built_where_go_can_and_simulated_elsewhere(
    go: str, engine: str, tmp_path: Path
) -> None:
    if go:
        (tmp_path / "go").write_text(f"#!/bin/sh\necho {go}\n")
        (tmp_path / "go").chmod(0o755)
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert default_engine(environment) == engine


def test_a_directory_is_claimed_by_one_fleet_and_left_as_it_was(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "fleet")
    claim = layout.prepare()
    with pytest.raises(DirectoryInUse, match="belongs to a running fleet"):
        layout.prepare()
    layout.kubeconfig.write_text("x")
    (layout.logs / "a.log").write_text("x")
    claim.release()
    assert not layout.root.exists()


def test_what_a_killed_fleet_left_is_cleared_and_strange_files_are_not_touched(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    os.close(layout.prepare().descriptor)  # as the kernel does when the process is killed
    layout.fleet_json.write_text("{}")
    claim = layout.prepare()
    assert not layout.fleet_json.exists()
    claim.release()
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DirectoryInUse, match=r"holds files that no fleet wrote \(thesis.txt\)"):
        layout.prepare()
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_stopping_what_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--stop", "--dir", str(tmp_path / "none")]) == 0
    assert "no demo is running" in capsys.readouterr().out
    os.close(Layout(tmp_path / "left").prepare().descriptor)
    assert demo.main(["--stop", "--dir", str(tmp_path / "left")]) == 0
    assert "removed what an earlier one left" in capsys.readouterr().out
    assert list((tmp_path / "left").iterdir()) == []


def test_stopping_one_that_is_still_starting_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = Layout(tmp_path / "fleet").prepare()
    assert demo.main(["--stop", "--dir", str(tmp_path / "fleet")]) == 1
    assert "belongs to a running fleet" in capsys.readouterr().err
    claim.release()


def test_commands_to_no_fleet_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FleetFailed, match="no fleet runs in"):
        ask(tmp_path / "control.sock", "ps")
    assert ctl.main(["--dir", str(tmp_path / "none"), "ps"]) == 1
    assert "no fleet runs in" in capsys.readouterr().err


def test_the_lock_is_not_inherited_by_children(tmp_path: Path) -> None:
    claim = Layout(tmp_path / "fleet").prepare()
    assert fcntl.fcntl(claim.descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    claim.release()


def test_stages_are_well_formed_and_named_once() -> None:
    stages = [stage for path in STAGES_DIR.glob("*.yaml") for stage in yaml.safe_load_all(path.read_text())]
    names = [stage["metadata"]["name"] for stage in stages]
    assert sorted(names) == [
        "node-heartbeat",
        "node-register",
        "pod-complete",
        "pod-create",
        "pod-ready-again",
        "pod-remove",
        "pod-run",
        "pod-terminate",
    ]
    assert all(stage["kind"] == "Stage" and stage["spec"]["steps"] for stage in stages)


def test_the_host_runs_no_controller_that_makes_or_counts_pods() -> None:
    for name in (
        "deployment",
        "replicaset",
        "statefulset",
        "daemonset",
        "job",
        "endpointslice",
        "disruption",
    ):
        assert f"-{name}-controller" in HOST_CONTROLLERS
    for name in ("cronjob", "garbage-collector", "namespace", "serviceaccount", "ttl-after-finished"):
        assert f"-{name}-controller" not in HOST_CONTROLLERS


def test_nodes_of_two_members_do_not_clash() -> None:
    nodes = [
        node(name, number, member=member) for member, name in ((1, "east"), (2, "west")) for number in (0, 1)
    ]
    assert len({n["metadata"]["name"] for n in nodes}) == 4  # type: ignore[index]
    assert len({n["spec"]["podCIDR"] for n in nodes}) == 4  # type: ignore[index]


def test_kwok_answers_for_every_pod_and_the_log_is_in_the_kubelets_format(tmp_path: Path) -> None:
    log = PodLog(tmp_path / "logs", "east")
    log.write("second")
    first, second = log.path.read_text().splitlines()
    assert first.endswith("Z stdout F container started on cluster east")
    assert second.split(" ", 1)[1] == "stdout F second"
    path = write_kwok_config(tmp_path / "kwok.yaml", cluster="east", log=log.path, rootfs=tmp_path / "rootfs")
    kinds = {document["kind"]: document["spec"] for document in yaml.safe_load_all(path.read_text())}
    assert set(kinds) == {"ClusterLogs", "ClusterExec", "ClusterAttach", "ClusterPortForward"}
    assert kinds["ClusterExec"]["execs"][0]["local"]["workDir"] == str(tmp_path / "rootfs")
    assert (tmp_path / "rootfs").is_dir()
