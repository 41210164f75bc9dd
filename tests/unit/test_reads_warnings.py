"""What an answer says of members that it was made without."""

from __future__ import annotations

from services.aggregator.reads.scope import MOST_WARNINGS, LeftOut


def test_each_member_is_named_while_they_are_few() -> None:
    left = LeftOut(away={"b": "it is away", "a": "it is away"}, denied={"c": "it does not let this user list"})
    assert left.warnings() == [
        "cluster a is left out: it is away",
        "cluster b is left out: it is away",
        "cluster c is left out: it does not let this user list",
    ]


def test_a_fleet_that_is_away_does_not_make_an_answer_that_clients_refuse() -> None:
    left = LeftOut(away={f"m{number:04}": "it is away" for number in range(1000)})
    texts = left.warnings()
    assert len(texts) == MOST_WARNINGS + 1
    assert texts[-1] == f"{1000 - MOST_WARNINGS} more clusters are left out"
