"""What `make demo` is told by its environment: MEMBERS, AGGREGATORS, DETACH, ENGINE."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from deploy.local.engines import KUBE, SIM
from deploy.local.errors import FleetFailed
from deploy.local.fleet import HOST

_NAMES = ("east", "west", "north", "south", "central")
_MOST = 20


@dataclass(frozen=True)
class Settings:
    """The members' names in order, whether to return when ready, and how many aggregators serve."""

    members: tuple[str, ...]
    detach: bool
    aggregators: int = 1
    engine: str = ""
    """kube, sim, or "": kube where its binaries are, sim elsewhere."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Settings:
        """Raises FleetFailed with the variable's name and what it allows."""
        engine = environ.get("ENGINE", "")
        if engine not in ("", KUBE, SIM):
            raise FleetFailed(f"ENGINE={engine}: allowed are {KUBE}, {SIM}")
        return cls(
            _members(environ.get("MEMBERS", "")),
            _flag("DETACH", environ.get("DETACH", "")),
            _aggregators(environ.get("AGGREGATORS", "")),
            engine,
        )


def _members(text: str) -> tuple[str, ...]:
    if text.isdigit() or not text:
        count = int(text or 2)
        if not 1 <= count <= _MOST:
            raise FleetFailed(f"MEMBERS={text}: a count from 1 to {_MOST}, or names separated by commas")
        return tuple(
            _NAMES[number] if number < len(_NAMES) else f"member-{number + 1}" for number in range(count)
        )
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if (
            not re.fullmatch(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?", name)
            or name == HOST
            or names.count(name) > 1
        ):
            raise FleetFailed(
                f"MEMBERS={text}: {name!r} is no name for a member (lower case letters, digits and '-', "
                f"each once, not {HOST!r}); a count works too"
            )
    return names


def _aggregators(text: str) -> int:
    if (text.isdigit() and 1 <= int(text) <= _MOST) or not text:
        return int(text or 1)
    raise FleetFailed(f"AGGREGATORS={text}: a count from 1 to {_MOST}")


def _flag(name: str, text: str) -> bool:
    if text.lower() in ("", "0", "no", "false"):
        return False
    if text.lower() in ("1", "yes", "true"):
        return True
    raise FleetFailed(f"{name}={text}: allowed are 1 and 0")
