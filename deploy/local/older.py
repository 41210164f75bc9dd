"""Builds Kubernetes' programs of another version, for members that run it: `python -m deploy.local.older v1.32.0`.

They go into that version's own place in the cache, where `Fleet.start(versions={"west": "v1.32.0"})` finds them. Its
libraries' versions are those of its own go.mod; no checksums of ours pin them, so this is for trying things by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.local.binaries import KUBERNETES
from deploy.local.build import BuildFailed, one_builder, say
from deploy.local.gotool import GoMissing, find_go
from deploy.local.paths import bin_dir, cache_dir
from deploy.local.recipes import kubernetes_ldflags

_STAGING = re.compile(r"^\s*(k8s\.io/[\w-]+) => \./staging/", re.MULTILINE)


def module(go_mod: str, version: str) -> str:
    """A module that requires Kubernetes: the published libraries stand in for the directories of its repository."""
    published = version.replace("v1.", "v0.", 1)
    lines = ["module reclock.dev/local/kubernetes", "go 1.24.0", f"require k8s.io/kubernetes {version}"]
    lines += [f"replace {name} => {name} {published}" for name in sorted(set(_STAGING.findall(go_mod)))]
    return "\n".join(lines) + "\n"


def build(version: str) -> Path:
    """Returns the directory of the binaries. Raises GoMissing, BuildFailed."""
    target = bin_dir(version=version)
    with one_builder(cache_dir(version=version)), tempfile.TemporaryDirectory(dir=cache_dir(version=version)) as scratch:
        go = find_go(cache_dir(), say)
        target.mkdir(exist_ok=True)
        found = json.loads(_run([go, "mod", "download", "-json", f"k8s.io/kubernetes@{version}"], Path(scratch)))
        Path(scratch, "go.mod").write_text(module(Path(found["GoMod"]).read_text(), version))
        for name in KUBERNETES:
            say(f"{name} {version} …")
            flags = ["-mod=mod", "-trimpath", "-ldflags", kubernetes_ldflags(version), "-o", str(target / name)]
            _run([go, "build", *flags, f"k8s.io/kubernetes/cmd/{name}"], Path(scratch))
    say(f"all built: {target}")
    return target


def _run(command: list[str], directory: Path) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", "GO111MODULE": "on"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.splitlines()[-15:])
        raise BuildFailed(f"'{' '.join(command[:3])}' ended with {done.returncode}:\n{tail}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.local.older", description=__doc__.splitlines()[0])
    parser.add_argument("version", help="such as v1.32.0")
    try:
        build(parser.parse_args().version)
    except (GoMissing, BuildFailed) as error:
        print(f"[kube] {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
