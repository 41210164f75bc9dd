"""A member's room: nodes, pods, reservations; nothing counted twice, nothing forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from scheduler_fakes import node, pod

from services.scheduler.ledger import OwnerKey
from services.scheduler.member import Ask, MemberState, owner_of
from services.scheduler.shape import make_shape, pod_shape

WEB = OwnerKey("default", "Deployment", "web")


def ask(id_: str = "w", count: int = 1, cpu: int = 1000, attempt: int = 0, **fields: Any) -> Ask:
    return Ask(id_, attempt, fields.pop("owner", OwnerKey("default", "Job", id_)), [(make_shape({"cpu": cpu}), count)], **fields)


def state(*nodes: dict[str, Any]) -> MemberState:
    found = MemberState("east")
    for item in nodes or (node("n0"), node("n1")):
        found.upsert_node(item)
    return found


def test_pods_fit_by_node_not_by_sum() -> None:
    east = state()
    assert east.evaluate([(make_shape({"cpu": 3000}), 2)]).eligible
    verdict = east.evaluate([(make_shape({"cpu": 5000}), 1)])
    assert verdict.filter == "Capacity"
    assert verdict.asked["cpu"] == 5000
    assert verdict.free["cpu"] == 4000
    assert "asks cpu 5, free 4" in verdict.message


def resized(cpu: str, has: str, **status: Any) -> dict[str, Any]:
    """A pod that asks for `cpu` and has `has`."""
    one = pod("a", cpu, "n0")
    containers = [{"name": "c", "resources": {"requests": {"cpu": has}}, "allocatedResources": {"cpu": has}}]
    return {**one, "status": {"phase": "Running", "containerStatuses": containers, **status}}


def test_pods_that_are_resized_in_place_count_with_what_they_have_or_ask_for() -> None:
    east = state()
    free = east.capacity.nodes["n0"].free
    told: list[bool] = []
    east.upsert_pod(pod("a", "1", "n0"))
    east.on_change = told.append
    assert free["cpu"] == 3000
    east.upsert_pod(resized("2", "1"))
    assert free["cpu"] == 2000, "it is about to get them"
    east.upsert_pod(resized("2", "2"))
    assert (free["cpu"], told) == (2000, [True])
    infeasible = {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]}
    east.upsert_pod(resized("64", "2", **infeasible))
    assert free["cpu"] == 2000
    east.upsert_pod(resized("1", "2"))
    assert free["cpu"] == 2000, "it still has them"
    east.upsert_pod(resized("1", "1"))
    assert free["cpu"] == 3000
    east.remove_pod("pod-a")
    assert (free["cpu"], free["pods"]) == (4000, 110_000)


def test_a_set_that_fits_in_part_says_how_many() -> None:
    verdict = state().evaluate([(make_shape({"cpu": 3000}), 3)])
    assert (verdict.filter, verdict.fits) == ("Capacity", 2)
    assert "asks for 3 pods, room for 2 now" in verdict.message


@pytest.mark.parametrize(
    ("spec", "filter_", "text"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, "NodeSelector", "2 of 2 nodes: wants disk=ssd"),
        ({"nodeName": "n7"}, "NodeName", "wants node n7"),
        (
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}}},
            "NodeAffinity", "no term",
        ),
    ],
)  # fmt: skip
def test_rules_of_pods_on_nodes(spec: dict[str, Any], filter_: str, text: str) -> None:
    shape = pod_shape({"containers": [], **spec})
    verdict = state().evaluate([(shape, 1)])
    assert verdict.filter == filter_
    assert text in verdict.message


def test_taints_of_nodes() -> None:
    east = state(node("n0", taints=[{"key": "gpu", "effect": "NoSchedule"}]), node("n1", unschedulable=True))
    verdict = east.evaluate([(make_shape({}), 1)])
    assert verdict.filter == "NodeTaint"
    assert "gpu:NoSchedule" in verdict.message
    tolerant = make_shape({}, {"tolerations": [{"key": "gpu", "operator": "Exists"}]})
    assert east.evaluate([(tolerant, 1)]).eligible
    east.upsert_node(node("n1"))
    assert east.evaluate([(make_shape({}), 1)]).eligible


def test_reservations_count_against_each_other() -> None:
    east = state()
    assert east.reserve(ask("a", 2, 3000), 0, 30).admitted
    refused = east.reserve(ask("b", 1, 2000), 0, 30)
    assert not refused.admitted
    assert refused.verdict.filter == "Capacity"
    assert east.release("a")
    assert east.reserve(ask("b", 1, 2000), 0, 30).admitted


def test_an_unconfirmed_reservation_ends_and_a_confirmed_one_does_not() -> None:
    east = state()
    east.reserve(ask("a", 1, 3000), 0, 30)
    east.reserve(ask("b", 1, 3000), 0, 30)
    assert east.confirm("a", 0)
    east.expire(30.0)
    assert east.ledger.get("a") is not None
    assert east.ledger.get("b") is None
    assert not east.confirm("b", 0)


def test_renewal_holds_once() -> None:
    east = state()
    for now in (0, 10, 20):
        assert east.reserve(ask("a", 2, 3000), now, 30).admitted
    assert east.capacity.free["cpu"] == 2000
    east.expire(49)
    assert east.ledger.get("a") is not None


def test_a_lower_attempt_is_refused_and_releases_nothing() -> None:
    east = state()
    east.reserve(ask("a", attempt=2), 0, 30)
    assert east.reserve(ask("a", attempt=1), 0, 30).verdict.filter == "Attempt"
    assert not east.release("a", 1)
    assert not east.confirm("a", 1)
    assert east.release("a", 2)


def test_a_refused_growth_keeps_what_runs() -> None:
    east = state()
    east.reserve(ask("a", 1, 3000), 0, 30)
    east.confirm("a", 0)
    assert not east.reserve(ask("a", 3, 3000), 0, 30).admitted
    held = east.ledger.get("a")
    assert held is not None
    assert (held.count, held.confirmed) == (1, True)
    assert east.capacity.free["cpu"] == 5000


def test_pods_that_appear_take_the_place_of_their_reservation() -> None:
    east = state()
    east.reserve(ask("a", 2, 1000, owner=OwnerKey("default", "Job", "a")), 0, 30)
    east.confirm("a", 0)
    assert east.capacity.free["cpu"] == 6000
    east.upsert_pod(pod("a-1", owner=("Job", "a")))
    assert east.capacity.free["cpu"] == 6000, "pending: its room is held for it instead"
    east.upsert_pod(pod("a-1", node_name="n1", owner=("Job", "a")))
    assert east.capacity.free["cpu"] == 6000
    east.upsert_pod(pod("a-2", node_name="n1", owner=("Job", "a")))
    assert east.capacity.free["cpu"] == 6000
    assert east.capacity.nodes["n1"].free["cpu"] == 2000
    east.remove_pod("pod-a-2")
    assert east.capacity.free["cpu"] == 6000, "the next pod of the job has room again"
    east.release("a")
    assert east.capacity.free["cpu"] == 7000


def test_ended_pods_use_nothing() -> None:
    east = state()
    east.upsert_pod(pod("x", node_name="n0", cpu="2"))
    assert east.capacity.free["cpu"] == 6000
    east.upsert_pod(pod("x", node_name="n0", cpu="2", phase="Failed"))
    assert east.capacity.free["cpu"] == 8000


def test_pods_listed_before_their_node_count() -> None:
    east = MemberState("east")
    east.upsert_pod(pod("x", node_name="n0", cpu="3"))
    east.upsert_node(node("n0"))
    assert east.capacity.free["cpu"] == 1000


def test_a_lost_node_moves_reservations_to_others() -> None:
    east = state()
    east.reserve(ask("a", 1, 3000), 0, 30)
    home = next(n for n in east.capacity.nodes.values() if n.free["cpu"] == 1000)
    east.remove_node(home.name)
    assert east.capacity.free["cpu"] == 1000
    east.upsert_node(node(home.name))
    assert east.capacity.free["cpu"] == 5000


def test_a_resync_replaces_what_is_confirmed_only() -> None:
    east = state()
    for id_ in ("stale", "kept", "inflight"):
        east.reserve(ask(id_), 0, 30)
    east.confirm("stale", 0)
    east.confirm("kept", 0)
    east.resync([ask("kept"), ask("new")])
    assert {r.id: r.confirmed for r in east.ledger} == {"kept": True, "new": True, "inflight": False}
    assert east.capacity.free["cpu"] == 5000


def test_what_is_placed_is_held_even_without_room() -> None:
    east = state(node("n0", cpu="1"))
    assert east.reserve(ask("a", 3, placed=True), 0, 30).admitted
    assert east.capacity.free["cpu"] == 0
    east.expire(1000)
    assert east.ledger.get("a") is not None


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        ({"name": "p", "namespace": "n"}, OwnerKey("n", "Pod", "p")),
        ({"name": "p", "namespace": "n", "ownerReferences": [{"kind": "Job", "name": "j", "controller": True}]}, OwnerKey("n", "Job", "j")),
        ({"name": "p", "namespace": "n", "ownerReferences": [{"kind": "Job", "name": "j"}]}, OwnerKey("n", "Pod", "p")),
        (
            {"name": "p", "namespace": "default", "labels": {"pod-template-hash": "abc"},
             "ownerReferences": [{"kind": "ReplicaSet", "name": "web-abc", "controller": True}]}, WEB,
        ),
        (
            {"name": "p", "namespace": "default", "ownerReferences": [{"kind": "ReplicaSet", "name": "web-abc", "controller": True}]},
            OwnerKey("default", "ReplicaSet", "web-abc"),
        ),
    ],
)  # fmt: skip
def test_whose_pod(metadata: dict[str, Any], owner: OwnerKey) -> None:
    assert owner_of(metadata) == owner


@given(st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 6)), max_size=20))
@settings(deadline=None)
def test_admitted_reservations_never_overcommit_a_node(asks: list[tuple[int, int]]) -> None:
    east = state()
    for number, (cpu, count) in enumerate(asks):
        east.reserve(ask(f"w{number}", count, cpu), 0, 30)
    assert all(n.free[r] >= 0 for n in east.capacity.nodes.values() for r in n.free)


class Bookkeeping(RuleBasedStateMachine):
    """Whatever comes in whatever order: the totals are the nodes' sums, and all room returns in the end."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.east = state()
        self.now = 0.0
        self.pods: set[str] = set()

    @rule(target=ids, id_=st.sampled_from(["a", "b", "c"]))
    def name(self, id_: str) -> str:
        return id_

    @rule(id_=ids, count=st.integers(0, 4), cpu=st.sampled_from([500, 1500, 3000]), partial=st.booleans(), placed=st.booleans())
    def reserve(self, id_: str, count: int, cpu: int, partial: bool, placed: bool) -> None:
        self.east.reserve(ask(id_, count, cpu, partial=partial, placed=placed), self.now, 30)

    @rule(id_=ids)
    def confirm(self, id_: str) -> None:
        self.east.confirm(id_, 0)

    @rule(id_=ids)
    def release(self, id_: str) -> None:
        self.east.release(id_)

    @rule(number=st.integers(0, 4), id_=ids, where=st.sampled_from(["", "n0", "n1", "n9"]), cpu=st.sampled_from(["500m", "2"]))
    def pod(self, number: int, id_: str, where: str, cpu: str) -> None:
        self.pods.add(f"p{number}")
        self.east.upsert_pod(pod(f"p{number}", cpu, where, owner=("Job", id_)))

    @rule(number=st.integers(0, 4))
    def unpod(self, number: int) -> None:
        self.east.remove_pod(f"pod-p{number}")

    @rule(name=st.sampled_from(["n0", "n1", "n2"]), cpu=st.sampled_from(["1", "4"]))
    def upsert_node(self, name: str, cpu: str) -> None:
        self.east.upsert_node(node(name, cpu))

    @rule(name=st.sampled_from(["n0", "n1", "n2"]))
    def remove_node(self, name: str) -> None:
        self.east.remove_node(name)

    @rule()
    def tick(self) -> None:
        self.now += 20
        self.east.expire(self.now)

    @invariant()
    def totals_are_sums(self) -> None:
        nodes = self.east.capacity.nodes.values()
        assert self.east.capacity.free.get("cpu", 0) == sum(n.free["cpu"] for n in nodes)
        assert self.east.capacity.allocatable.get("cpu", 0) == sum(n.allocatable["cpu"] for n in nodes)

    def teardown(self) -> None:
        for id_ in ("a", "b", "c"):
            self.east.release(id_)
        for name in self.pods:
            self.east.remove_pod(f"pod-{name}")
        for item in self.east.capacity.nodes.values():
            assert item.free["cpu"] == item.allocatable["cpu"]
        assert len(self.east.ledger) == 0
        assert not self.east.ledger.pods


TestBookkeeping = Bookkeeping.TestCase
TestBookkeeping.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
