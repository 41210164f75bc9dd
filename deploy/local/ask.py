"""Commands to a running fleet over a socket in its directory: `python -m deploy.local.ctl --dir .reclock ps`.

One JSON object a line each way. Request: {"op": one of OPS, "name": process or member name, or a glob of process
names}; with op "sim" a simulated cluster's name, "fault" (an action of `deploy.local.sim.admin`) and "given" (its
parameters); with op "link" a link's name or glob, "fault" (see `deploy.local.proxy`), "latency" and "bandwidth". Answer:
{"ok": true, "processes": [...], "links": {...}} or {"ok": false, "error": text}.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.local.errors import FleetFailed

OPS = (
    "ps",
    "start",
    "stop",
    "kill9",
    "restart",
    "pause",
    "resume",
    "link",
    "sim",
    "add-member",
    "remove-member",
    "shutdown",
)
FAULTS = ("heal", "cut", "reset", "hang", "half-open", "slow")
"""Of links; see `deploy.local.proxy`."""


def ask(path: Path, op: str, name: str = "", timeout: float = 180.0, **more: Any) -> dict[str, Any]:
    """Sends one command and returns the answer; `more` are further fields of the request. Raises FleetFailed when no fleet listens or it refuses."""
    with short_path(path) as short, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(short)
            connection.sendall(json.dumps({"op": op, "name": name, **more}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer: dict[str, Any] = json.loads(stream.readline() or b"{}")
        except TimeoutError:
            raise FleetFailed(f"the fleet has not answered within {timeout:.0f} s; see {path.parent}/logs") from None
        except (FileNotFoundError, ConnectionError) as error:
            raise FleetFailed(f"no fleet runs in {path.parent} ({error}); 'make demo' starts one") from None
    if not answer.get("ok"):
        raise FleetFailed(str(answer.get("error", "the fleet ended without an answer")))
    return answer


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """The path of a socket, through a descriptor of its directory: socket paths end at 107 bytes."""
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise FleetFailed(f"no fleet runs in {path.parent} ({error.strerror}); 'make demo' starts one") from None
    try:
        base = f"/proc/self/fd/{directory}"
        yield f"{base}/{path.name}" if os.path.isdir(base) else str(path)
    finally:
        os.close(directory)
