"""Selectors, affinity terms, taints and policies, as Kubernetes defines them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from scheduler_fakes import START

from services.scheduler import policy as policies
from services.scheduler.matching import (
    Taint,
    describe_selector,
    eviction,
    node_terms_hold,
    requirement_holds,
    selector_holds,
    untolerated,
)  # fmt: skip
from services.scheduler.policy import Target

LABELS = {"region": "eu", "cores": "8"}


@pytest.mark.parametrize(
    ("key", "operator", "values", "holds"),
    [
        ("region", "In", ["eu", "us"], True), ("region", "In", ["us"], False), ("zone", "In", ["a"], False),
        ("region", "NotIn", ["us"], True), ("region", "NotIn", ["eu"], False), ("zone", "NotIn", ["a"], True),
        ("region", "Exists", [], True), ("zone", "Exists", [], False),
        ("zone", "DoesNotExist", [], True), ("region", "DoesNotExist", [], False),
        ("cores", "Gt", ["4"], True), ("cores", "Gt", ["8"], False), ("cores", "Lt", ["9"], True),
        ("region", "Gt", ["4"], False), ("cores", "Gt", [], False), ("region", "Unknown", ["eu"], False),
    ],
)  # fmt: skip
def test_requirements(key: str, operator: str, values: list[str], holds: bool) -> None:
    assert requirement_holds(LABELS, {"key": key, "operator": operator, "values": values}) is holds


def test_selectors() -> None:
    assert selector_holds(LABELS, None)
    assert selector_holds(LABELS, {})
    assert selector_holds(LABELS, {"matchLabels": {"region": "eu"}})
    assert not selector_holds(LABELS, {"matchLabels": {"region": "eu", "zone": "a"}})
    both = {"matchLabels": {"region": "eu"}, "matchExpressions": [{"key": "cores", "operator": "In", "values": ["4"]}]}
    assert not selector_holds(LABELS, both)
    assert describe_selector(both) == "region=eu, cores In (4)"


def test_node_terms_are_alternatives_and_an_empty_one_never_holds() -> None:
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}
    label = {"matchExpressions": [{"key": "region", "operator": "In", "values": ["us"]}]}
    assert node_terms_hold("n0", LABELS, [label, field])
    assert not node_terms_hold("n1", LABELS, [label, field])
    assert not node_terms_hold("n0", LABELS, [{}])
    assert not node_terms_hold("n0", LABELS, [])


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
        ({"key": "k", "value": "v"}, True), ({"key": "k", "value": "x"}, False), ({"key": "k"}, False),
        ({"key": "k", "operator": "Exists"}, True), ({"operator": "Exists"}, True), ({"operator": "Equal"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False), ({"key": "x", "operator": "Exists"}, False),
    ],
)  # fmt: skip
def test_tolerations(toleration: dict[str, Any], tolerated: bool) -> None:
    taint = Taint("k", "v", "NoSchedule")
    assert (untolerated([taint], [toleration]) is None) is tolerated


def test_a_preference_keeps_nothing_away() -> None:
    assert untolerated([Taint("k", "", "PreferNoSchedule")], []) is None


def test_eviction_waits_for_the_smallest_toleration() -> None:
    taint = Taint("k", "", "NoExecute", START)
    forever = {"key": "k", "operator": "Exists"}
    assert eviction([taint], [], START) is not None
    assert eviction([taint], [forever], START) is None
    assert eviction([Taint("k", "", "NoSchedule")], [], START) is None
    found = eviction([taint], [{**forever, "tolerationSeconds": 60}, {**forever, "tolerationSeconds": 30}], START)
    assert found is not None
    assert found.at == START + timedelta(seconds=30)


def policy(policy_name: str, priority: int = 0, **selector: Any) -> policies.Policy:
    spec = {"priority": priority, "resourceSelectors": [selector] if selector else []}
    return policies.parse({"metadata": {"name": policy_name}, "spec": spec})


TARGET = Target("apps/v1", "Deployment", "shop", "web", {"tier": "front"})


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([], ""),
        ([policy("all")], "all"),
        ([policy("all"), policy("kind", kind="Deployment")], "kind"),
        ([policy("kind", kind="Deployment"), policy("namespace", namespace="shop")], "namespace"),
        ([policy("namespace", namespaces=["shop", "x"]), policy("labels", labelSelector={"matchLabels": {"tier": "front"}})], "labels"),
        ([policy("labels", labelSelector={"matchLabels": {"tier": "front"}}), policy("name", name="web")], "name"),
        ([policy("name", name="web"), policy("first", priority=1)], "first"),
        ([policy("b"), policy("a")], "a"),
        ([policy("other", kind="Job"), policy("tier", labelSelector={"matchLabels": {"tier": "back"}})], ""),
    ],
)  # fmt: skip
def test_the_policy_that_applies(candidates: list[policies.Policy], chosen: str) -> None:
    assert policies.choose(candidates, TARGET).name == chosen


def test_what_the_kind_allows_wins() -> None:
    divided = policies.parse({"metadata": {"name": "p"}, "spec": {"type": "Divided"}})
    assert divided.type_for("Single") == "Single"
    assert divided.type_for("Duplicated") == "Duplicated"
    assert divided.type_for("Any") == "Divided"


def test_weights_add_up() -> None:
    found = policies.parse({"metadata": {"name": "p"}, "spec": {"divided": {"weights": [
        {"clusterNames": ["east"], "weight": 2}, {"clusterSelector": {"matchLabels": {"region": "eu"}}, "weight": 3},
    ]}}})  # fmt: skip
    assert found.weight_of("east", {"region": "eu"}) == 5
    assert found.weight_of("west", {"region": "us"}) == 0
    assert policies.DEFAULT.weight_of("west", {}) == 1
