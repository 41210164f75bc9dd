"""`make demo`: the whole of Reclock on two clusters (real Kubernetes, or simulated), ready to be tried with kubectl.

    python -m deploy.local.demo          # MEMBERS=3 DETACH=1 ENGINE=kube|sim in the environment
    python -m deploy.local.demo --stop

Leaves `kubeconfig`, `clusters/`, `fleet.json` and `logs/` in `.reclock/` of the checkout while it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from deploy.local.ask import ask
from deploy.local.binaries import Binaries, BinariesMissing
from deploy.local.control import Control
from deploy.local.engines import KUBE, SIM, default_engine
from deploy.local.errors import FleetFailed
from deploy.local.fleet import Fleet, quiet
from deploy.local.foreground import printer, run
from deploy.local.layout import Layout
from deploy.local.plane import Say
from deploy.local.sample import deploy_sample
from deploy.local.settings import Settings

_CHECKOUT = Path(__file__).resolve().parents[2]
_STOP_SECONDS = 60.0
_NEXT = """
Reclock is up: {count} clusters behind one API.

  export KUBECONFIG={kubeconfig}
  kubectl get clusters
  kubectl get pods -o wide
  kubectl create deployment web --image=nginx --replicas=4
  kubectl get pods --watch
  kubectl logs deployment/hello --tail=3
  kubectl exec -it deployment/hello -- sh
  reclock explain deployment/hello            (in the virtual environment: {venv})

Processes: {python} -m deploy.local.ctl ps
  also: {stops}kill9 aggregator, restart etcd, add-member {spare}, …
Clusters themselves: {root}/clusters/<name>.kubeconfig; a kubeconfig dropped into {root}/members/ joins the fleet.
Logs: {root}/logs/. {end}
"""

_STOPS = {KUBE: "stop east-apiserver, start east-apiserver, ", SIM: "sim east lose-network, sim east lift, "}
_PYTHON = os.path.relpath(sys.executable, _CHECKOUT)

say = printer("demo")


def choose_engine(settings: Settings, say: Say) -> Settings:
    """The settings with an engine in them; says which it is, and how to get the other. Raises FleetFailed."""
    engine = settings.engine or default_engine()
    if engine == KUBE:
        ensure_binaries()
        say("engine: kube (real Kubernetes); ENGINE=sim runs on simulated clusters")
    else:
        say("engine: sim (simulated clusters); for real Kubernetes: Go >= 1.24 on PATH, or ENGINE=kube, which fetches one")
    return replace(settings, engine=engine)


def ensure_binaries() -> None:
    """Builds the Kubernetes binaries when they are missing. Raises FleetFailed when that fails."""
    try:
        Binaries.find()
    except BinariesMissing as missing:
        say(
            f"engine kube: building {', '.join(missing.names)} first, some minutes, once "
            "(Ctrl-C and ENGINE=sim: simulated clusters at once)"
        )
        done = subprocess.run([sys.executable, "-m", "deploy.local.build"], cwd=_CHECKOUT)
        if done.returncode != 0:
            raise FleetFailed("the Kubernetes binaries could not be built (reason above)") from None
        Binaries.find()


async def demo(
    directory: Path, settings: Settings, stop: Callable[[], None], ready: Callable[[], None]
) -> None:
    """Runs the demo until cancelled; `ready` is called once the sample is up."""
    began = time.monotonic()
    async with (
        Fleet.start(
            directory,
            members=settings.members,
            aggregators=settings.aggregators,
            services=True,
            sinker=True,
            usual_ports=True,
            keep_alive=True,
            ticks=True,
            engine=settings.engine,
            say=say,
        ) as fleet,
        Control(fleet, stop).serving(),
    ):
        say(f"ready ({time.monotonic() - began:.0f} s); kubeconfig: {fleet.kubeconfig}")
        try:
            await deploy_sample(fleet.kubeconfig, say)
        except FleetFailed as error:
            # The fleet is worth more than the sample: it stays up, to be looked at.
            say(f"THE SAMPLE DID NOT COME UP: {error}; see {fleet.layout.logs}")
        end = "'make demo-stop' ends it." if settings.detach else "Ctrl-C stops everything."
        text = _NEXT.format(
            count=len(settings.members),
            kubeconfig=fleet.kubeconfig,
            venv=Path(sys.executable).parent,
            python=_PYTHON,
            spare=next(name for name in ("north", "extra") if name not in settings.members),
            root=fleet.layout.root,
            stops=_STOPS[fleet.engine.name],
            end=end,
        )
        print(text, flush=True)
        ready()
        await asyncio.Event().wait()


def foreground(directory: Path, settings: Settings, ready_descriptor: int | None) -> int:
    """Runs the demo in this process; with a descriptor, lets go of the terminal and writes to it when ready."""

    def ready() -> None:
        if ready_descriptor is not None:
            log = os.open(directory / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            os.write(ready_descriptor, b"1")
            os.close(ready_descriptor)

    return run(lambda stop: demo(directory, settings, stop, ready), say)


def detached(directory: Path) -> int:
    """Starts the demo in a session of its own and returns when it is ready: 0, or 1 when it failed."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "deploy.local.demo", "--dir", str(directory), "--ready-fd", str(writer)]
    supervisor = subprocess.Popen(
        command, cwd=_CHECKOUT, stdin=subprocess.DEVNULL, pass_fds=[writer], start_new_session=True
    )
    os.close(writer)
    try:
        ready = os.read(reader, 1)
    except KeyboardInterrupt:
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait()
        return 130
    finally:
        os.close(reader)
    return 0 if ready else (supervisor.wait() or 1)


def stop(directory: Path) -> int:
    """Ends a running demo and returns when nothing of it is left; 0 as well when none runs."""
    layout = Layout(directory)
    if not directory.exists():
        say("no demo is running")
        return 0
    supervisor = layout.supervisor()
    try:
        ask(layout.control, "shutdown")
    except FleetFailed:
        # None listens: still starting (then the lock is held) or killed (then its files are left over).
        layout.prepare().release()
        say("no demo is running; removed what an earlier one left")
        return 0
    deadline = time.monotonic() + _STOP_SECONDS
    while layout.control.exists() or layout.fleet_json.exists() or _is_alive(supervisor):
        if time.monotonic() > deadline:
            raise FleetFailed(f"the demo did not end within {_STOP_SECONDS:.0f} s; see {layout.logs}")
        time.sleep(0.1)
    say("stopped; nothing is left behind")
    return 0


def _is_alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        # A zombie has ended: where nothing reaps orphans (a container without an init) it stays one.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 stopped or detached and ready, 1 failed, 130 interrupted while detaching."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.local.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stop", action="store_true", help="end a running demo")
    parser.add_argument(
        "--dir", type=Path, default=_CHECKOUT / ".reclock", help="default: .reclock/ of the checkout"
    )
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    directory = arguments.dir.resolve()
    try:
        if arguments.stop:
            return stop(directory)
        # In a session of its own, what there is to say has been said.
        settings = choose_engine(Settings.read(os.environ), say if arguments.ready_fd is None else quiet)
        if arguments.ready_fd is None and settings.detach:
            return detached(directory)
        return foreground(directory, settings, arguments.ready_fd)
    except FleetFailed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
