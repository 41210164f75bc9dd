"""Stubs and the description of the APIs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import apidoc, stubs


def test_the_description_is_of_these_contracts() -> None:
    assert apidoc.TARGET.read_text() == apidoc.text(), "contracts have changed: run `make api`"


def test_the_description_is_complete() -> None:
    described = json.loads(apidoc.TARGET.read_text())
    work = described["paths"]["/reclock.reconciler.v1.ReconcilerService/Work"]["post"]
    assert work["x-client-streaming"] and work["x-server-streaming"] and work["description"]
    schemas = described["components"]["schemas"]
    register = schemas["reclock.reconciler.v1.Register"]["properties"]
    assert register["maxInFlight"]["type"] == "integer"
    assert register["weights"]["additionalProperties"] == {"type": "number", "format": "double"}
    assert register["backoffBase"]["pattern"].endswith("s$")
    references = {part.split('"')[0] for part in json.dumps(described).split("#/components/schemas/")[1:]}
    assert references <= set(schemas)


def test_python_stubs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.stubs", "--lang", "python", "--out", str(tmp_path)],
        cwd=stubs.ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reclock/reconciler/v1/reconciler_pb2_grpc.py").exists()
    assert str(tmp_path) in done.stdout


def test_a_tool_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for language, tool in (("go", "go"), ("ts", "npm"), ("java", "mvn")):
        with pytest.raises(stubs.StubsFailed, match=f"no {tool} on PATH"):
            stubs.generate(language, tmp_path / language)


def test_the_contracts_are_a_buf_module(tmp_path: Path) -> None:
    """What a user of buf gets: an export that builds on its own, is as buf's rules want it, and makes code."""
    buf = Path(sys.executable).with_name("buf")
    if not buf.exists():
        pytest.skip("no buf: it comes with the extra `lint`")

    def run(*arguments: str) -> None:
        environment = {**os.environ, "PATH": f"{buf.parent}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
        done = subprocess.run([buf, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout

    run("export", str(stubs.PROTO), "-o", "module")
    exported = sorted(str(file.relative_to(tmp_path / "module")) for file in (tmp_path / "module").rglob("*.proto"))
    assert exported == stubs.protos()
    (tmp_path / "module" / "buf.yaml").write_text((stubs.PROTO / "buf.yaml").read_text())
    run("build", "module", "-o", "image.binpb")
    run("lint", "module")
    run("breaking", "module", "--against", str(stubs.PROTO / "baseline.binpb"))
    template = {"version": "v2", "plugins": [{"local": "protoc-gen-mypy", "out": "code"}]}
    run("generate", "module", "--template", json.dumps(template))
    assert (tmp_path / "code" / "reclock/reconciler/v1/reconciler_pb2.pyi").exists()
