"""What a torture run says: one line while it goes on, a table at the end, and what a breach needs to be understood."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, field

from tests.proof.history import Breach

SHOWN = 10


@dataclass(slots=True)
class Summary:
    """Figures of a whole run."""

    seed: int
    minutes: float = 0.0
    watchers: int = 0
    clients: int = 0
    events: int = 0
    records: int = 0
    writes: int = 0
    unknown: int = 0
    conflicts: int = 0
    failovers: int = 0
    resumes: int = 0
    relists: int = 0
    histories: int = 0
    settled: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    breaches: list[Breach] = field(default_factory=list)

    def table(self) -> str:
        """For people, and for docs/figures.md."""
        seconds = max(self.minutes * 60, 1)
        rows = [
            ("seed", str(self.seed)),
            ("minutes under faults", f"{self.minutes:.1f}"),
            ("watchers and informers / other clients", f"{self.watchers} / {self.clients}"),
            ("events delivered", f"{self.events} ({self.events / seconds:.0f}/s)"),
            ("writes answered / of unknown outcome", f"{self.writes} ({self.writes / seconds:.0f}/s) / {self.unknown}"),
            ("conflicts of counters", str(self.conflicts)),
            ("faults", ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items())) or "none"),
            ("failovers of the sequencer", str(self.failovers)),
            ("watches resumed / clients that had to list anew", f"{self.resumes} / {self.relists}"),
            ("settled after the last fault", f"{self.settled:.1f} s"),
            ("histories / records checked", f"{self.histories} / {self.records}"),
            ("breaches", str(len(self.breaches))),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows)

    def failures(self) -> str:
        """The first breaches of each invariant, with the records that show them."""
        lines = [f"seed {self.seed}: {len(self.breaches)} breaches"]
        by: dict[str, list[Breach]] = {}
        for one in self.breaches:
            by.setdefault(one.invariant, []).append(one)
        for invariant, some in by.items():
            lines.append(f"{invariant}: {len(some)}")
            lines += [str(one) for one in some[:SHOWN]]
        return "\n".join(lines)


async def progress(line: object, period: float = 2.0) -> None:
    """Print `line()` over itself on a terminal, else every fifth time."""
    assert callable(line)
    count = 0
    while True:
        await asyncio.sleep(period)
        count += 1
        if sys.stdout.isatty():
            print(f"\r\x1b[2K{line()}"[:200], end="", flush=True)
        elif count % 5 == 0:
            print(line(), flush=True)
