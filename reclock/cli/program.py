"""Runs the controllers of a Python file: `python -m reclock.cli.program FILE`, and what `reclock dev` starts."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from reclock._controller import Controller
from reclock._errors import ReclockError
from reclock._worker import run

SUFFIX = "RECLOCK_CONTROLLER_SUFFIX"
"""Put behind controllers' names: the service knows a name for minutes after its last worker, and would not ask new code
about objects that the old has done with."""


def load(path: Path) -> ModuleType:
    """The module of a file; what is behind `if __name__ == "__main__"` does not run. Raises what it raises."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ReclockError(f"{path} is no Python file")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def controllers(module: ModuleType) -> list[Controller]:
    """Those that are bound to a name in it, each once."""
    found = [value for value in vars(module).values() if isinstance(value, Controller)]
    return list({id(one): one for one in found}.values())


def main(paths: list[str]) -> int:
    """Exit code: 0 when it was stopped, 1 when there is nothing to run or the service refuses it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S")
    found = [one for path in paths for one in controllers(load(Path(path)))]
    if not found:
        print(f"{', '.join(paths)}: no controller there; make one with @reclock.controller", file=sys.stderr)
        return 1
    if suffix := os.environ.get(SUFFIX):
        found = [replace(one, name=f"{one.name[: 62 - len(suffix)]}.{suffix}") for one in found]
    try:
        run(*found)
    except ReclockError as error:
        print(f"reclock: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
