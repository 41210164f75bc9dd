"""Generates gRPC stubs of Reclock's contracts for users: `python -m deploy.stubs --lang go --out DIR`.

protoc is grpcio-tools'; the other languages' plugins come from their own registries into the cache
(`$XDG_CACHE_HOME/reclock/stubs`): Go modules, npm, Maven Central. Without network they are there from the last time.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from deploy.local.paths import cache_root

ROOT = Path(__file__).resolve().parents[1]
PROTO = ROOT / "proto"
GO_PLUGINS = {
    "protoc-gen-go": "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.6",
    "protoc-gen-go-grpc": "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1",
}
TS_PROTO = "ts-proto@2.18.0"
JAVA_TOOLS = {"protoc": "com.google.protobuf:protoc:4.35.1", "protoc-gen-grpc-java": "io.grpc:protoc-gen-grpc-java:1.83.0"}
"""grpcio-tools' protoc cannot write Java, so Maven's comes along."""


class StubsFailed(Exception):
    """What is missing, and what to do."""


def protos() -> list[str]:
    """The contracts, below `proto/`."""
    return sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))


def well_known() -> Path:
    """Where `google/protobuf/*.proto` are."""
    import grpc_tools

    return Path(grpc_tools.__file__).parent / "_proto"


def protoc(*arguments: str) -> None:
    """Run grpcio-tools' protoc on all contracts. StubsFailed when it fails (it has said why)."""
    from grpc_tools import protoc as tool

    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if tool.main(["protoc", f"-I{PROTO}", f"-I{well_known()}", *arguments, *protos()]):
        raise StubsFailed("protoc failed (reason above)")


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a tool; its output is shown only when it fails."""
    if shutil.which(command[0]) is None:
        raise StubsFailed(f"no {command[0]} on PATH")
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if done.returncode:
        raise StubsFailed(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def python(out: Path, cache: Path, module: str) -> None:
    """`reclock/<service>/v1/*_pb2.py`, `*_pb2_grpc.py` and their types; the package `reclock` has the same."""
    protoc(f"--python_out={out}", f"--grpc_python_out={out}", f"--pyi_out={out}")


def go(out: Path, cache: Path, module: str) -> None:
    """Packages `<module>/reclock/<service>/v1`."""
    for name, package in GO_PLUGINS.items():
        if not (cache / name).exists():
            run("go", "install", package, env={"GOBIN": str(cache), "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"})
    options = ",".join(
        [f"module={module}", *(f"M{path}={module}/{Path(path).parent.as_posix()}" for path in protos())]
    )
    protoc(
        *(f"--plugin={name}={cache / name}" for name in GO_PLUGINS),
        f"--go_out={out}", f"--go_opt={options}", f"--go-grpc_out={out}", f"--go-grpc_opt={options}",
    )  # fmt: skip


def ts(out: Path, cache: Path, module: str) -> None:
    """Modules `reclock/<service>/v1/<service>.ts` for @grpc/grpc-js (ts-proto)."""
    home = cache / TS_PROTO.replace("@", "-")
    plugin = home / "node_modules" / ".bin" / "protoc-gen-ts_proto"
    if not plugin.exists():
        home.mkdir(parents=True, exist_ok=True)
        run("npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(home), TS_PROTO)
    options = "outputServices=grpc-js,esModuleInterop=true,forceLong=number,env=node,importSuffix=.js,useOptionals=none"
    protoc(f"--plugin=protoc-gen-ts_proto={plugin}", f"--ts_proto_out={out}", f"--ts_proto_opt={options}")


def java(out: Path, cache: Path, module: str) -> None:
    """Packages `reclock.<service>.v1` (messages inside of one class for each contract), and the services' stubs."""
    tools = {name: _from_maven(artifact, cache) for name, artifact in JAVA_TOOLS.items()}
    run(
        str(tools["protoc"]), f"-I{PROTO}", f"-I{well_known()}", f"--plugin=protoc-gen-grpc-java={tools['protoc-gen-grpc-java']}",
        f"--java_out={out}", f"--grpc-java_out=@generated=omit:{out}", *protos(),
    )  # fmt: skip


def _from_maven(artifact: str, cache: Path) -> Path:
    """A program that Maven Central has for this machine."""
    machine = {"aarch64": "aarch_64", "arm64": "aarch_64"}.get(platform.machine(), platform.machine())
    system = f"{'osx' if sys.platform == 'darwin' else 'linux'}-{machine}"
    _, name, version = artifact.split(":")
    program = cache / f"{name}-{version}-{system}.exe"
    if not program.exists():
        run(
            "mvn", "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy",
            f"-Dartifact={artifact}:exe:{system}", f"-DoutputDirectory={cache}",
        )  # fmt: skip
        program.chmod(0o755)
    return program


LANGUAGES: dict[str, Callable[[Path, Path, str], None]] = {"go": go, "java": java, "python": python, "ts": ts}


def generate(language: str, out: Path, module: str = "reclock.dev/stubs") -> None:
    """Write a language's stubs into `out`. StubsFailed when a tool is missing or fails."""
    cache = cache_root() / "stubs"
    cache.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    LANGUAGES[language](out, cache, module)


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when they could not be made."""
    parser = argparse.ArgumentParser(prog="python -m deploy.stubs", description=__doc__)
    parser.add_argument("--lang", required=True, choices=sorted(LANGUAGES), metavar="|".join(sorted(LANGUAGES)))
    parser.add_argument("--out", type=Path, help="directory (build/stubs/LANG)")
    parser.add_argument("--module", default="reclock.dev/stubs", help="Go module of the stubs")
    arguments = parser.parse_args(argv)
    out = (arguments.out or ROOT / "build" / "stubs" / arguments.lang).absolute()
    try:
        generate(arguments.lang, out, arguments.module)
    except StubsFailed as error:
        print(f"stubs: {error}", file=sys.stderr)
        return 1
    print(f"stubs for {arguments.lang}: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
