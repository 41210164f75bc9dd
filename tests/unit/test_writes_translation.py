"""Versions, owners and bodies of writes on their way to a member."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from services.aggregator.types import Aggregated
from services.aggregator.writes import body, jsonpatches, references
from services.aggregator.writes.create import generate_name
from services.aggregator.writes.patch import merge_references
from services.aggregator.writes.target import Target
from services.common.errors import StatusError, timeout

PODS = Aggregated("pods", "", "v1", "pods", "Pod", namespaced=True)
HOST_RS, MEMBER_RS, POD_OWNER, CR = "host-rs", "member-rs", "member-pod", "host-cr"


def reference(uid: str, kind: str = "ReplicaSet", api: str = "apps/v1", name: str = "web") -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": True}


class FakeClock:
    """The log at a head, with one shown marker."""

    def __init__(self, marker: Any, head: int) -> None:
        self.marker_now, self.head, self.waited = marker, head, 0

    def shown(self, namespace: str, name: str) -> Any:
        return self.marker_now

    async def wait_head(self, version: int, limit: float) -> None:
        self.waited = version
        raise timeout("not reached")


def target(fleet: int = 640, version: int = 17, head: int = 1000) -> Target:
    marker = SimpleNamespace(fleet=fleet, version=version, cluster="east", uid="u1")
    clock: Any = FakeClock(marker, head)
    return Target(PODS, clock, marker, None, "v1", "default", "web")  # type: ignore[arg-type]


async def copy_uid(cluster: str, owner: Any, namespace: str) -> str | None:
    return MEMBER_RS if owner.uid == HOST_RS else None


def context(*, shown: Any = None) -> Any:
    one = SimpleNamespace(group="", resource="pods", namespaced=True)
    clock = SimpleNamespace(shown=lambda namespace, name: shown)
    return SimpleNamespace(
        owners=SimpleNamespace(copy_uid=copy_uid),
        aggregations=SimpleNamespace(lookup_kind=lambda api, kind: one if kind == "Pod" else None),
        clock=SimpleNamespace(get=lambda group, resource: clock),
    )


async def test_current_version_becomes_the_members() -> None:
    assert await target().member_version("640") == b"17"


async def test_no_version_stays_none() -> None:
    assert await target().member_version("") is None


@pytest.mark.parametrize("asked", ["639", "17", "641"])
async def test_any_other_version_conflicts(asked: str) -> None:
    """Also the member's own number: passed through, it would overwrite what the caller never saw."""
    with pytest.raises(StatusError) as caught:
        await target().member_version(asked)
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")


async def test_version_of_a_replica_ahead_is_waited_for_then_conflicts() -> None:
    one = target(head=100)
    with pytest.raises(StatusError) as caught:
        await one.member_version("2000")
    assert caught.value.code == 409
    assert one.clock.waited == 2000  # type: ignore[attr-defined]


async def test_version_that_is_no_integer_is_refused() -> None:
    with pytest.raises(StatusError) as caught:
        await target().member_version("abc")
    assert caught.value.code == 400


async def test_reference_to_a_copy_gets_the_members_uid() -> None:
    sent = msgspec.json.encode({"metadata": {"ownerReferences": [reference(HOST_RS)]}})
    inside = msgspec.json.decode(await references.take_in(context(), "east", "default", sent))
    assert inside["metadata"]["ownerReferences"][0]["uid"] == MEMBER_RS
    assert "annotations" not in inside["metadata"]


async def test_reference_to_a_host_object_goes_to_the_annotation() -> None:
    """The member's garbage collector would delete the object within a second."""
    sent = msgspec.json.encode({"metadata": {"ownerReferences": [reference(CR, "Widget", "example.com/v1")]}})
    inside = msgspec.json.decode(await references.take_in(context(), "east", "default", sent))["metadata"]
    assert "ownerReferences" not in inside
    kept = msgspec.json.decode(inside["annotations"][references.HOST_OWNERS])
    assert kept == [reference(CR, "Widget", "example.com/v1")]
    assert inside["labels"] == {references.HOST_OWNED: "true"}


async def test_owner_on_the_member_stays_and_fixes_the_cluster() -> None:
    shown = SimpleNamespace(uid=POD_OWNER, cluster="east")
    sent = msgspec.json.encode({"metadata": {"ownerReferences": [reference(POD_OWNER, "Pod", "v1")]}})
    assert msgspec.json.decode(
        await references.take_in(context(shown=shown), "east", "default", sent)
    ) == msgspec.json.decode(sent)
    owner = body.OwnerReference(POD_OWNER, "v1", "Pod", "web")
    assert references.fixed_clusters(context(shown=shown), "default", [owner]) == {"east"}


def test_strategic_merge_of_references() -> None:
    before = [{"uid": "a", "name": "one"}, {"uid": "b", "name": "two"}]
    assert merge_references(before, [{"$patch": "delete", "uid": "a"}]) == [{"uid": "b", "name": "two"}]
    assert merge_references(before, [{"uid": "b", "controller": True}])[1] == {
        "uid": "b",
        "name": "two",
        "controller": True,
    }
    assert merge_references(before, [{"$patch": "replace"}, {"uid": "c"}]) == [{"uid": "c"}]


@pytest.mark.parametrize(
    ("operation", "translated"),
    [
        ({"op": "replace", "path": "/spec/x", "value": 1}, False),
        ({"op": "add", "path": "/metadata/labels/a", "value": "b"}, False),
        ({"op": "add", "path": "/metadata/annotations/a", "value": "b"}, True),
        ({"op": "test", "path": "/metadata/resourceVersion", "value": "1"}, True),
        ({"op": "copy", "from": "/metadata/annotations/a", "path": "/metadata/labels/a"}, True),
        ({"op": "replace", "path": "", "value": {}}, True),
    ],
)
def test_json_patches_that_cannot_pass(operation: dict[str, Any], translated: bool) -> None:
    decoded = jsonpatches.decode(msgspec.json.encode([operation]))
    assert jsonpatches.needs_translation(decoded) is translated


def test_failed_test_is_422() -> None:
    with pytest.raises(StatusError) as caught:
        jsonpatches.apply([{"op": "test", "path": "/a", "value": 2}], {"a": 1})
    assert caught.value.code == 422


@pytest.mark.parametrize("sent", [b"[{]", b"{}", b'[{"op":"add"}]', b"\xff"])
def test_no_patch_is_400(sent: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        jsonpatches.decode(sent)
    assert caught.value.code == 400


async def test_body_encodings() -> None:
    assert await body.as_json(b'{"a": 1}', "application/json; charset=utf-8") == b'{"a": 1}'
    assert msgspec.json.decode(await body.as_json(b"a: 1", "application/yaml")) == {"a": 1}
    with pytest.raises(StatusError) as caught:
        await body.as_json(b"k8s\x00", "application/vnd.kubernetes.protobuf")
    assert caught.value.code == 415
    with pytest.raises(StatusError) as caught:
        body.envelope(b"no json", "Pod")
    assert caught.value.code == 400


def test_generated_names_are_names() -> None:
    name = generate_name("web-")
    assert name.startswith("web-") and len(name) == len("web-") + 5
    assert len(generate_name("x" * 100)) == 63
    assert generate_name("") == ""


def test_a_json_patch_that_doubles_the_object_again_and_again_is_refused() -> None:
    obj = {"metadata": {"name": "web", "annotations": {"a": "x" * 1000}}}
    doubling = [{"op": "copy", "from": "/metadata", "path": f"/metadata/x{n}"} for n in range(40)]
    with pytest.raises(StatusError) as refused:
        jsonpatches.apply(doubling, obj)
    assert refused.value.code == 422
    assert obj == {"metadata": {"name": "web", "annotations": {"a": "x" * 1000}}}
