"""Kubernetes quantities as numbers: `100m`, `1.5`, `2Gi`, `1e3`."""

from __future__ import annotations

import math
from fractions import Fraction

_SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1), "k": Fraction(10**3),
    "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}  # fmt: skip


def _value(text: str | int | float) -> Fraction:
    said = str(text).strip()
    digits = said.rstrip("numkMGTPEi")
    return Fraction(digits) * _SUFFIXES[said[len(digits) :]]


def cpu(text: str | int | float) -> int:
    """Millicores, rounded up."""
    return math.ceil(_value(text) * 1000)


def memory(text: str | int | float) -> int:
    """Bytes, or a plain count; rounded up."""
    return math.ceil(_value(text))
