"""Mutated real objects: a few here; a million by hand, see `splice_mutations`."""

from __future__ import annotations

from collections import Counter

import pytest
from splice_mutations import AGREED, FINE, REFUSED, once

COUNT = 1500


@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_mutated_objects_are_what_the_twin_makes_of_them_or_refused(form: str) -> None:
    came = Counter(once(form, 0, number) for number in range(COUNT))
    assert came[FINE] > COUNT / 5 and came[AGREED] > COUNT / 50 and came[REFUSED] > COUNT / 10, came
