"""Kubernetes quantities as whole thousandths, so that `100m` of cpu and `1Gi` of memory add up exactly.

Every amount is an `int` of thousandths of the resource's unit (cores, bytes, pods).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

MILLI = 1000
LARGEST = Decimal(2**63 - 1)
"""What is larger counts as this, as in Kubernetes."""
PODS = "pods"

_SUFFIXES: dict[str, Decimal] = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_PATTERN = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)$")


@lru_cache(maxsize=65536)
def parse(text: str | int | float) -> int:
    """Return a quantity in thousandths, rounded up and capped as Kubernetes does; ValueError when it is none."""
    match = _PATTERN.match(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is no Kubernetes quantity")
    number, exponent, suffix = match.groups()
    value = Decimal(number)
    value = _scaled(value, int(exponent)) if exponent else value * _SUFFIXES[suffix or ""]
    return int((max(min(value, LARGEST), -LARGEST) * MILLI).to_integral_value(rounding=ROUND_CEILING))


def _scaled(number: Decimal, exponent: int) -> Decimal:
    """number·10^exponent, never written out with a million digits."""
    size = number.adjusted() + exponent
    if not number or abs(size) <= 20:
        return number.scaleb(exponent) if number else number
    return (LARGEST if size > 0 else Decimal("1e-20")).copy_sign(number)


def parse_all(amounts: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """Parse a resource list."""
    return {name: parse(value) for name, value in (amounts or {}).items()}


def render(amount: int, resource: str = "cpu") -> str:
    """Write an amount the way kubectl shows it: `250m`, `2`, `512Mi`."""
    if amount % MILLI:
        return f"{amount}m"
    whole = amount // MILLI
    if resource in ("memory", "ephemeral-storage", "storage") or resource.startswith("hugepages-"):
        for suffix, size in (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
            if whole and whole % size == 0:
                return f"{whole // size}{suffix}"
    return str(whole)


def plain(amount: int) -> str:
    """Write an amount without units of size: `250m`, `2`, `536870912`."""
    return f"{amount}m" if amount % MILLI else str(amount // MILLI)


def render_all(amounts: Mapping[str, int]) -> dict[str, str]:
    """Write a resource list."""
    return {name: render(value, name) for name, value in sorted(amounts.items())}


def add(into: dict[str, int], amounts: Iterable[tuple[str, int]], times: int = 1) -> None:
    """Add `times` of `amounts` to `into`, in place."""
    for name, amount in amounts:
        into[name] = into.get(name, 0) + amount * times
