"""Where a running fleet keeps its files: `kubeconfig`, `clusters/`, `members/`, `logs/`, `fleet.json`, `state/`.

`fleet.json`: {"engine", "pid" (of the supervisor), "front" (URL), "fronts": {aggregator: {"url", "kubeconfig"}},
"services": {name: {address key: address}},
"clusters": {name: {"kubeconfig", "server", "member": bool}}, "processes": [{"name", "pid", "state", "ports", "log",
"restarts", "command"}], "links": {name: {"port", "target", "fault", "connections"}}}.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from deploy.local.errors import FleetFailed

_OURS = ("kubeconfig", "clusters", "members", "logs", "fleet.json", "state", "control.sock", "supervisor.log")

_FRONT = re.compile(r"kubeconfig-[0-9]+")


class DirectoryInUse(FleetFailed):
    """The directory belongs to a running fleet, or holds something that no fleet wrote."""


@dataclass(frozen=True)
class Layout:
    """Paths below a fleet's directory."""

    root: Path

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def fleet_json(self) -> Path:
        return self.root / "fleet.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def members(self) -> Path:
        """Where discovery looks for kubeconfigs: one dropped here joins the fleet."""
        return self.root / "members"

    @property
    def control(self) -> Path:
        return self.root / "control.sock"

    def front_kubeconfig(self, number: int) -> Path:
        """Of the n-th aggregator's front; the first one's is `kubeconfig`."""
        return self.kubeconfig if number == 1 else self.root / f"kubeconfig-{number}"

    def cluster_kubeconfig(self, name: str) -> Path:
        return self.root / "clusters" / f"{name}.kubeconfig"

    def member_kubeconfig(self, name: str) -> Path:
        return self.members / f"{name}.kubeconfig"

    def state(self, name: str) -> Path:
        return self.root / "state" / name

    def prepare(self) -> Claim:
        """Claims the directory and empties it of an earlier fleet's files. Raises DirectoryInUse."""
        created = not self.root.exists()
        names = set() if created else {entry.name for entry in self.root.iterdir()}
        strange = sorted(name for name in names - {*_OURS, "lock"} if not _FRONT.fullmatch(name))
        if strange:
            raise DirectoryInUse(f"{self.root} holds files that no fleet wrote ({', '.join(strange[:3])})")
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        claim = Claim(self, self.lock(), created)
        self.clear()
        for path in (self.logs, self.members, self.root / "clusters", self.root / "state"):
            path.mkdir(mode=0o700)
        return claim

    def clear(self) -> None:
        """Removes what a fleet writes, and nothing else."""
        for name in [*_OURS, *(path.name for path in self.root.glob("kubeconfig-*") if _FRONT.fullmatch(path.name))]:
            path = self.root / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def supervisor(self) -> int | None:
        """The process that `fleet.json` names as the one that runs the fleet; None when there is no such file."""
        try:
            return int(json.loads(self.fleet_json.read_text())["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def lock(self) -> int:
        """Takes the directory for this process, until the descriptor is closed. Raises DirectoryInUse."""
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise DirectoryInUse(f"{self.root} belongs to a running fleet; stop that first") from None
        return descriptor


@dataclass(frozen=True)
class Claim:
    """A directory held by this process; `created` when it did not exist before."""

    layout: Layout
    descriptor: int
    created: bool

    def release(self) -> None:
        """Removes what the fleet wrote, and the directory itself when the fleet made it and it is empty."""
        self.layout.clear()
        (self.layout.root / "lock").unlink(missing_ok=True)
        if self.created:
            with contextlib.suppress(OSError):
                self.layout.root.rmdir()
        os.close(self.descriptor)
