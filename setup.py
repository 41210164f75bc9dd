"""Builds what is not committed: the gRPC stubs from `proto/` and the Cython modules of `_fastpath/`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
DEBUG = os.environ.get("RECLOCK_DEBUG_EXT") == "1"


def generate_stubs() -> None:
    """Write `reclock/<service>/v1/*_pb2*.py(i)`; only what is older than its .proto."""
    from grpc_tools import protoc

    include = Path(protoc.__file__).parent / "_proto"
    # Build isolation puts the plugins of mypy-protobuf beside the interpreter, not always on PATH.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for proto in sorted((ROOT / "proto").rglob("*.proto")):
        relative = proto.relative_to(ROOT / "proto")
        stub = ROOT / relative.with_name(relative.stem + "_pb2_grpc.py")
        if stub.exists() and stub.stat().st_mtime >= proto.stat().st_mtime:
            continue
        stub.parent.mkdir(parents=True, exist_ok=True)
        code = protoc.main(
            ["protoc", f"-I{ROOT / 'proto'}", f"-I{include}", f"--python_out={ROOT}", f"--grpc_python_out={ROOT}",
             f"--mypy_out={ROOT}", f"--mypy_grpc_out={ROOT}", str(relative)]
        )
        if code:
            raise SystemExit(f"setup.py: the stubs of {relative} could not be generated (protoc exit {code})")


def extensions() -> list[Extension]:
    """One extension per `_fastpath/*.pyx`."""
    flags = ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3"]
    return [
        Extension(f"_fastpath.{path.stem}", [str(path.relative_to(ROOT))], include_dirs=["_fastpath"],
                  depends=[str(p.relative_to(ROOT)) for p in (ROOT / "_fastpath").glob("*.h")],
                  extra_compile_args=flags)
        for path in sorted((ROOT / "_fastpath").glob("*.pyx"))
    ]


os.chdir(ROOT)
generate_stubs()
setup(
    ext_modules=cythonize(
        extensions(),
        build_dir="build/cython",
        compiler_directives={
            "language_level": 3, "boundscheck": DEBUG, "wraparound": False, "initializedcheck": DEBUG,
            "cdivision": True,
        },
    ),
)
