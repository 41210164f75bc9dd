"""Names of clusters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.discovery.names import Candidate, assign, dns_safe, is_dns_label


def test_context_names_are_taken_as_they_are() -> None:
    names, notes = assign([Candidate("/k/a.yaml", "east"), Candidate("/k/b.yaml", "west")], {})
    assert set(names) == {"east", "west"}
    assert notes == []


def test_the_second_of_a_name_gets_file_and_context_and_is_noted() -> None:
    first, second = Candidate("/k/a.yaml", "default"), Candidate("/k/b.yaml", "default")
    names, notes = assign([first, second], {})
    assert names == {"default": first, "b-default": second}
    assert [candidate for candidate, _ in notes] == [second]
    assert "b-default" in notes[0][1]


def test_a_file_added_later_renames_nobody() -> None:
    first, second = Candidate("/k/a.yaml", "default"), Candidate("/k/b.yaml", "default")
    names, notes = assign([first, second], {"default": second.source})
    assert names == {"default": second, "a-default": first}
    assert len(notes) == 1
    # And it stays so when the holder's name was the long one.
    names, _ = assign([first, second], {"default": second.source, "a-default": first.source})
    assert names == {"default": second, "a-default": first}


def test_who_gets_no_name_is_reported() -> None:
    candidates = [Candidate("/k/a.yaml", "x"), Candidate("/l/a.yaml", "x"), Candidate("/m/a.yaml", "x")]
    names, notes = assign(candidates, {})
    assert set(names) == {"x", "a-x"}
    assert "left out" in notes[-1][1]


def test_dns_safe() -> None:
    assert dns_safe("kubernetes-admin@kubernetes") == "kubernetes-admin-kubernetes"
    assert dns_safe("arn:aws:eks:EU/prod") == "arn-aws-eks-eu-prod"


@given(st.text())
def test_every_text_makes_a_dns_label(text: str) -> None:
    assert is_dns_label(dns_safe(text))


@given(st.lists(st.tuples(st.sampled_from(["/a", "/b", "/c/a"]), st.text(max_size=4)), unique=True))
def test_each_candidate_has_one_name_or_a_note(pairs: list[tuple[str, str]]) -> None:
    candidates = [Candidate(path, context) for path, context in pairs]
    names, notes = assign(candidates, {})
    left_out = {candidate for candidate, message in notes if "left out" in message}
    assert set(names.values()) | left_out == set(candidates)
    assert not set(names.values()) & left_out
    # Said again with what was given, nothing moves.
    again, _ = assign(candidates, {name: candidate.source for name, candidate in names.items()})
    assert {name: again[name] for name in names} == names


def test_no_cluster_is_called_host() -> None:
    """Statuses and metrics call the host so: a Sink's status with two rows of that name is refused as a whole."""
    one, two = Candidate("/k/a.yaml", "host"), Candidate("/k/b.yaml", "Host")
    names, notes = assign([one, two], {})
    assert names == {"a-host": one, "b-host": two}
    assert "taken by the host; it is shown as 'a-host'" in notes[0][1]
    held, _ = assign([one], {"host": one.source})
    assert held == {"host": one}, "one that had the name before keeps it"
