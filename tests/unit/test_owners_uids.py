"""Owner uids: copies both ways, what is hidden, what is asked, and what is forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from writes_fake import FakeCluster

from services.aggregator.owners import Owners, copies, owners
from services.common import errors
from services.common.errors import MemberUnreachable, StatusError

RS = "/apis/apps/v1/namespaces/ns/replicasets/rs"


class Owner:
    """An ownerReference."""

    def __init__(self, uid: str, kind: str = "ReplicaSet", api_version: str = "apps/v1", name: str = "rs") -> None:
        self.uid, self.kind, self.api_version, self.name = uid, kind, api_version, name


def copy(uid: str = "member-rs", host: str = "host-rs", fleet: str = "fleet") -> Any:
    return {"metadata": {"name": "rs", "namespace": "ns", "uid": uid, "labels": {copies.ORIGIN: fleet},
                         "annotations": {copies.HOST_UID: host}}}  # fmt: skip


class Rig:
    """Owners of one member, whose copies the test feeds by hand."""

    def __init__(self) -> None:
        self.client = FakeCluster("east")
        self.listeners: list[Any] = []
        fleet: Any = SimpleNamespace(members={"east": SimpleNamespace(client=self.client)}, subscribe=lambda _: None)
        aggregations: Any = SimpleNamespace(
            on_change=self.listeners.append,
            lookup_kind=lambda api, kind: "pods" if (api, kind) == ("v1", "Pod") else None,
        )
        self.owners = Owners(fleet, aggregations, "fleet")
        self.copies = copies.Copies(self.client, "fleet")  # type: ignore[arg-type]
        self.owners._copies["east"] = self.copies

    async def resolve(self, *wanted: Owner) -> dict[str, str | None]:
        return await self.owners.resolve("east", wanted, "ns")


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_copy_is_shown_under_the_hosts_uid_both_ways(rig: Rig) -> None:
    rig.copies._changed("ADDED", copy(), None)
    assert rig.owners.outgoing("east", ["member-rs"]) == {"member-rs": "host-rs"}
    assert rig.owners.incoming("east") == {"host-rs": "member-rs"}
    assert rig.owners.object_uid("east", "member-rs") == "host-rs"
    assert rig.owners.outgoing("", ["member-rs"]) == {}, "objects of the host stay as they are"


async def test_copy_of_another_fleet_is_none(rig: Rig) -> None:
    rig.client.answers[("GET", RS)] = copy(fleet="other")
    assert await rig.resolve(Owner("member-rs")) == {"member-rs": None}


async def test_unknown_owner_is_asked_for_once(rig: Rig) -> None:
    assert rig.owners.outgoing("east", ["member-rs"]) is None
    rig.client.answers[("GET", RS)] = copy()
    for _ in range(2):
        assert await rig.resolve(Owner("member-rs")) == {"member-rs": "host-rs"}
    assert len(rig.client.asked) == 1


async def test_members_own_owner_is_hidden_without_asking_again(rig: Rig) -> None:
    own = {"metadata": {"uid": "own", "labels": {}}}
    rig.client.answers[("GET", RS)] = own
    for _ in range(2):
        assert await rig.resolve(Owner("own"), Owner("node", "Node", "v1")) == {"own": None, "node": None}
    assert len(rig.client.asked) == 1, "of kinds that are never copied nothing is asked"


async def test_aggregated_owner_is_shown_as_it_is(rig: Rig) -> None:
    assert await rig.resolve(Owner("p", "Pod", "v1")) == {}


async def test_owner_that_cannot_be_asked_for_is_hidden_this_time_only(rig: Rig) -> None:
    rig.client.answers[("GET", RS)] = MemberUnreachable("away")
    assert await rig.resolve(Owner("member-rs")) == {"member-rs": None}
    rig.client.answers[("GET", RS)] = copy()
    assert await rig.resolve(Owner("member-rs")) == {"member-rs": "host-rs"}


async def test_verdicts_end_with_the_set_of_aggregations(rig: Rig) -> None:
    await rig.resolve(Owner("node", "Node", "v1"))
    rig.listeners[0]([])
    assert rig.owners.outgoing("east", ["node"]) is None


async def test_evicted_verdict_is_asked_for_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "CACHE", 1)
    await rig.resolve(Owner("a", "Node", "v1"), Owner("b", "Node", "v1"))
    assert rig.owners.outgoing("east", ["a"]) is None
    assert rig.owners.outgoing("east", ["b"]) == {"b": None}


async def test_write_with_a_copy_that_the_informer_has_not_seen(rig: Rig) -> None:
    """After a start: without asking, the pod would lose its controller on the member."""
    rig.client.answers[("GET", RS)] = copy()
    assert await rig.owners.copy_uid("east", Owner("host-rs"), "ns") == "member-rs"
    assert await rig.owners.copy_uid("east", Owner("host-rs"), "ns") == "member-rs"
    assert len(rig.client.asked) == 1


async def test_write_with_an_owner_that_has_no_copy(rig: Rig) -> None:
    assert await rig.owners.copy_uid("east", Owner("cr", "Widget", "example.com/v1"), "ns") is None
    assert rig.client.asked == []
    assert await rig.owners.copy_uid("east", Owner("host-rs"), "ns") is None
    rig.client.answers[("GET", RS)] = copy(host="another")
    assert await rig.owners.copy_uid("east", Owner("host-rs"), "ns") is None


async def test_write_fails_while_nobody_can_say(rig: Rig) -> None:
    rig.client.answers[("GET", RS)] = errors.unavailable("starting")
    with pytest.raises(StatusError):
        await rig.owners.copy_uid("east", Owner("host-rs"), "ns")


async def test_pods_outlive_their_owner_but_not_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "GONE", 2)
    for number in range(4):
        one = copy(f"m{number}", f"h{number}")
        rig.copies._changed("ADDED", one, None)
        rig.copies._changed("DELETED", one, one)
    assert rig.copies.to_member == {} and rig.copies.to_host == {"m2": "h2", "m3": "h3"}


async def test_newer_copy_of_one_host_object_survives_the_end_of_the_older(rig: Rig) -> None:
    rig.copies._changed("ADDED", copy("m1"), None)
    rig.copies._changed("ADDED", copy("m2"), None)
    rig.copies._changed("DELETED", copy("m1"), copy("m1"))
    assert rig.owners.incoming("east") == {"host-rs": "m2"}


async def test_copy_that_is_set_free_is_no_copy_any_more(rig: Rig) -> None:
    rig.copies._changed("ADDED", copy(), None)
    rig.copies._changed("MODIFIED", {"metadata": {"uid": "member-rs", "labels": {}}}, copy())
    assert rig.owners.incoming("east") == {}


async def test_changed_credentials_follow_the_same_client(rig: Rig) -> None:
    member: Any = SimpleNamespace(name="east", client=rig.client)
    await rig.owners.updated(member, member)
    assert rig.owners._copies["east"] is rig.copies
    await rig.resolve(Owner("node", "Node", "v1"))
    await rig.owners.disengaged(member)
    assert rig.owners.incoming("east") == {} and not rig.owners._verdicts
