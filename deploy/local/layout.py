"""Where a running fleet keeps its files: `kubeconfig`, `clusters/`, `members/`, `logs/`, `fleet.json`, `state/`.

`fleet.json`: {"engine", "pid" (of the supervisor), "front", "frontPort", "services": {name: {address key: address}},
"clusters": {name: {"kubeconfig", "server", "member": bool}}, "processes": [{"name", "pid", "state", "ports", "log",
"restarts", "command"}]}.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_OURS = ("kubeconfig", "clusters", "members", "logs", "fleet.json", "state", "control.sock", "supervisor.log")


class DirectoryInUse(Exception):
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

    def cluster_kubeconfig(self, name: str) -> Path:
        return self.root / "clusters" / f"{name}.kubeconfig"

    def member_kubeconfig(self, name: str) -> Path:
        return self.members / f"{name}.kubeconfig"

    def state(self, name: str) -> Path:
        return self.root / "state" / name

    def prepare(self) -> bool:
        """Makes the directory, empty of an earlier fleet; True when it did not exist. Raises DirectoryInUse."""
        created = not self.root.exists()
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if pid := self.supervisor():
            raise DirectoryInUse(f"{self.root} belongs to a running fleet (process {pid}); stop it first")
        strange = sorted(entry.name for entry in self.root.iterdir() if entry.name not in _OURS)
        if strange:
            raise DirectoryInUse(f"{self.root} holds files that no fleet wrote ({', '.join(strange[:3])})")
        self.clear()
        for path in (self.logs, self.members, self.root / "clusters", self.root / "state"):
            path.mkdir(mode=0o700)
        return created

    def clear(self) -> None:
        """Removes what a fleet writes, and nothing else."""
        for name in _OURS:
            path = self.root / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def remove(self, *, root_too: bool) -> None:
        """Clears, and removes the directory itself when the fleet made it and it is empty."""
        self.clear()
        if root_too:
            with contextlib.suppress(OSError):
                self.root.rmdir()

    def supervisor(self) -> int | None:
        """The process id that `fleet.json` names, when that process is alive."""
        try:
            pid = int(json.loads(self.fleet_json.read_text())["pid"])
            os.kill(pid, 0)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return pid
