"""Small changes to a Go module at build time, from a recipe's `_changes` directory, applied to a copy of the module.

Standard library only: the builder imports it on a bare Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path


class ChangesFailed(Exception):
    """The module does not look as the edits expect it (its version changed without them), or it cannot be had."""


def change_files(directory: Path) -> list[Path]:
    """Every file of a `_changes` directory but its explanation, sorted: part of what a binary is made of."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.suffix != ".md")


def apply_changes(
    go: str, module: str, changes: Path, *, workdir: Path, environment: Mapping[str, str]
) -> None:
    """Makes the module of `workdir` (a scratch copy with go.mod) use a changed copy of `module`.

    `edits.json`: [{"file", "find", "replace"}], each matching exactly once; `add/`: files to add.
    """
    source = Path(json.loads(_go(go, ["mod", "download", "-json", module], workdir, environment))["Dir"])
    copy = workdir / "changed"
    # The module cache is read-only, directories too: a plain copy could not be changed or removed.
    shutil.copytree(source, copy, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("*_test.go"))
    for directory, _, _ in os.walk(copy):
        os.chmod(directory, 0o755)
    for edit in json.loads((changes / "edits.json").read_text()):
        path = copy / edit["file"]
        text = path.read_text()
        if text.count(edit["find"]) != 1:
            raise ChangesFailed(
                f"{module}: {edit['file']} has {text.count(edit['find'])} times {edit['find']!r}"
            )
        path.write_text(text.replace(edit["find"], edit["replace"]))
    shutil.copytree(changes / "add", copy, dirs_exist_ok=True)
    _go(go, ["mod", "edit", f"-replace={module}=./{copy.name}"], workdir, environment)


def _go(go: str, arguments: list[str], workdir: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [go, *arguments], cwd=workdir, env=dict(environment), capture_output=True, text=True
    )
    if done.returncode != 0:
        detail = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise ChangesFailed(f"'go {' '.join(arguments)}' failed: {detail}")
    return done.stdout
