"""Patches, updates and subresources: what is translated on the way in, and what an answer waits for."""

from __future__ import annotations

from typing import Any

import pytest
from writes_fake import PODS, World, call, pod, refused

from services.aggregator.types import Aggregated
from services.aggregator.writes import patch, subresource, update
from services.common import errors

ONE = "/api/v1/namespaces/ns/pods/web"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH, APPLY = "application/json-patch+json", "application/apply-patch+yaml"


@pytest.fixture
def world() -> World:
    made = World()
    made.clock.put("east", "web", "u1")
    for method in ("GET", "PATCH", "PUT"):
        made.east.answers[(method, ONE)] = pod(uid="u1", resourceVersion="17", annotations={"a": "1"})
    return made


async def send(world: World, body: Any, kind: str = MERGE, path: str = ONE) -> Any:
    return await patch.patch(world.context, call("PATCH", path, body, kind), PODS)


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC, APPLY])
async def test_version_becomes_the_members_tied_to_the_uid(world: World, kind: str) -> None:
    await send(world, {"metadata": {"resourceVersion": "640", "labels": {"a": "b"}}}, kind)
    assert world.east.sent("PATCH") == [
        {"metadata": {"resourceVersion": "17", "labels": {"a": "b"}, "uid": "u1"}}
    ]


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC, APPLY])
async def test_stale_and_foreign_versions_conflict(world: World, kind: str) -> None:
    for version in ("17", "639"):
        error = await refused(lambda v=version: send(world, {"metadata": {"resourceVersion": v}}, kind))
        assert error.code == 409
    assert world.east.sent("PATCH") == []


async def test_shown_annotation_never_reaches_the_member(world: World) -> None:
    await send(world, {"metadata": {"annotations": {"reclock.dev/cluster": "west", "b": "2"}}})
    assert world.east.sent("PATCH") == [{"metadata": {"annotations": {"b": "2"}}}]


async def test_taking_all_annotations_off_keeps_those_that_are_not_shown(world: World) -> None:
    await send(world, {"metadata": {"annotations": None}})
    assert world.east.sent("PATCH") == [{"metadata": {"annotations": {"a": None}}}]


async def test_references_are_worked_out_over_what_is_shown(world: World) -> None:
    """A hidden reference (the member's own) stays, a copy's gets the member's uid, the order list goes."""
    world.owners.copies = {"host-rs": "member-rs"}
    hidden = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node"}
    partial = pod(uid="u1", resourceVersion="17", ownerReferences=[hidden])
    shown = pod(uid="u1", resourceVersion="17")
    world.east.answers[("GET", ONE)] = [shown, partial]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "host-rs"}
    body = {"metadata": {"ownerReferences": [owner], "$setElementOrder/ownerReferences": [{"uid": "host-rs"}]}}
    await send(world, body, STRATEGIC)
    (sent,) = world.east.sent("PATCH")
    assert sent["metadata"]["ownerReferences"] == [{"$patch": "replace"}, hidden, {**owner, "uid": "member-rs"}]
    assert "$setElementOrder/ownerReferences" not in sent["metadata"]
    assert sent["metadata"]["resourceVersion"] == "17"


async def test_json_patch_of_plain_fields_passes(world: World) -> None:
    operations = [{"op": "add", "path": "/metadata/labels/a", "value": "b"}]
    await send(world, operations, JSON_PATCH)
    assert world.east.sent("PATCH") == [operations] and not world.east.sent("PUT")


async def test_json_patch_that_takes_the_version_away_still_conflicts_with_others(world: World) -> None:
    await send(world, [{"op": "remove", "path": "/metadata/resourceVersion"}], JSON_PATCH)
    (sent,) = world.east.sent("PUT")
    assert sent["metadata"]["resourceVersion"] == "17" and sent["metadata"]["uid"] == "u1"


async def test_json_patch_is_tried_again_unless_it_names_a_version(world: World) -> None:
    conflict = errors.conflict("pods", "web", "changed")
    stored = pod(uid="u1", resourceVersion="17")
    world.east.answers[("PUT", ONE)] = [conflict, conflict, stored]
    await send(world, [{"op": "add", "path": "/metadata/annotations/b", "value": "2"}], JSON_PATCH)
    assert len(world.east.sent("PUT")) == 3
    world.east.answers[("PUT", ONE)] = conflict
    named = [{"op": "test", "path": "/metadata/resourceVersion", "value": "640"}]
    assert (await refused(lambda: send(world, named, JSON_PATCH))).code == 409
    assert len(world.east.sent("PUT")) == 4


async def test_json_patch_of_a_stale_version(world: World) -> None:
    """As Kubernetes: a failed test is 422, a replace with it is 409."""
    test = [{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}]
    assert (await refused(lambda: send(world, test, JSON_PATCH))).code == 422
    replace = [{"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}]
    assert (await refused(lambda: send(world, replace, JSON_PATCH))).code == 409
    assert world.east.sent("PUT") == []


async def test_json_patch_of_a_subresource_works_on_the_subresource(world: World) -> None:
    scale = {"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": {"replicas": 1},
             "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "resourceVersion": "17"}}  # fmt: skip
    for method in ("GET", "PUT"):
        world.east.answers[(method, ONE + "/scale")] = scale
    operations = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": "640"},
        {"op": "replace", "path": "/spec/replicas", "value": 3},
    ]
    await send(world, operations, JSON_PATCH, ONE + "/scale")
    (sent,) = world.east.sent("PUT", ONE + "/scale")
    assert sent["kind"] == "Scale" and sent["spec"] == {"replicas": 3}
    assert set(world.paths) == {ONE + "/scale"}


async def test_apply_of_what_nobody_has_creates(world: World) -> None:
    path = "/api/v1/namespaces/ns/pods/new"
    world.east.answers[("PATCH", path)] = pod("new", uid="u7", resourceVersion="20")
    body = b"apiVersion: v1\nkind: Pod\nmetadata: {name: new}\n"
    await send(world, body, APPLY, path + "?fieldManager=me&force=true")
    metadata = {"name": "new", "labels": {"reclock.dev/routed": "fleet"}}
    assert world.east.sent("PATCH", path) == [{"apiVersion": "v1", "kind": "Pod", "metadata": metadata}]
    assert world.east.queries[-1] == [("fieldManager", "me"), ("force", "true")]
    assert world.clock.claims[0].released


async def test_apply_of_what_another_apply_creates_just_then_patches_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """kube-apiserver never answers an apply AlreadyExists."""
    path = "/api/v1/namespaces/ns/pods/new"
    world.west.answers[("PATCH", path)] = pod("new", uid="u7", resourceVersion="17")

    async def taken(namespace: str, name: str, cluster: str) -> Any:
        world.clock.put("west", name, "u7")
        raise errors.already_exists("pods", name)

    monkeypatch.setattr(world.clock, "claim", taken)
    answer = await send(world, pod("new"), APPLY, path + "?fieldManager=me")
    assert answer.status == 200 and world.west.sent("PATCH") == [pod("new")] and not world.east.sent("PATCH")


@pytest.mark.parametrize("query", ["/status", ""])
async def test_apply_that_must_not_create(world: World, query: str) -> None:
    path = "/api/v1/namespaces/ns/pods/new" + query
    body = {"metadata": {"resourceVersion": "5"}} if not query else {"status": {}}
    assert (await refused(lambda: send(world, body, APPLY, path))).code == 404
    assert not world.clock.claims


async def test_the_member_logs_a_write_under_our_audit_id(world: World) -> None:
    """Its answer carries the id to the client, who looks for it in our log too."""
    await send(world, {"metadata": {"labels": {"a": "b"}}})
    assert world.east.audit_ids == ["id-1"]


async def test_unknown_patch_type_is_415(world: World) -> None:
    assert (await refused(lambda: send(world, {}, "application/json"))).code == 415


async def test_update_is_tied_to_the_uid_and_restores_owners(world: World) -> None:
    world.owners.copies = {"host-rs": "member-rs"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "host-rs"}
    body = pod(resourceVersion="640", ownerReferences=[owner], annotations={"reclock.dev/cluster": "east"})
    await update.update(world.context, call("PUT", ONE, body), PODS)
    (sent,) = world.east.sent("PUT")
    assert sent["metadata"]["ownerReferences"] == [{**owner, "uid": "member-rs"}]
    assert sent["metadata"]["uid"] == "u1" and sent["metadata"]["resourceVersion"] == "17"
    assert "reclock.dev/cluster" not in (sent["metadata"].get("annotations") or {})


async def test_update_in_yaml_and_of_another_name(world: World) -> None:
    text = b"metadata: {name: web, namespace: ns, labels: {a: b}}\n"
    await update.update(world.context, call("PUT", ONE, text, "application/yaml"), PODS)
    assert world.east.sent("PUT")[0]["metadata"]["labels"] == {"a": "b"}
    other = call("PUT", ONE, {"metadata": {"name": "db"}})
    assert (await refused(lambda: update.update(world.context, other, PODS))).code == 400


async def run_sub(world: World, method: str, sub: str, body: Any, aggregated: Aggregated = PODS) -> Any:
    return await subresource.subresource(world.context, call(method, f"{ONE}/{sub}", body), aggregated)


STATUS = {"kind": "Status", "apiVersion": "v1", "status": "Success"}


async def test_eviction_is_in_the_log_when_it_is_answered(world: World) -> None:
    world.east.answers[("POST", ONE + "/eviction")] = STATUS
    conditions = {"deleteOptions": {"preconditions": {"resourceVersion": "640"}}}
    await run_sub(world, "POST", "eviction", {"metadata": {"name": "web"}, **conditions})
    assert world.clock.deletions == [("east", "u1")]
    assert world.east.sent("POST")[0]["deleteOptions"]["preconditions"] == {"resourceVersion": "17", "uid": "u1"}
    await run_sub(world, "POST", "eviction", {"deleteOptions": {"dryRun": ["All"]}})
    assert len(world.clock.deletions) == 1


async def test_binding_is_in_the_log_when_it_is_answered(world: World) -> None:
    world.east.answers[("POST", ONE + "/binding")] = STATUS
    world.east.answers[("GET", ONE)] = pod(uid="u1", resourceVersion="21")
    await run_sub(world, "POST", "binding", {"target": {"name": "node"}})
    assert world.clock.versions == [21]


async def test_answer_without_a_version_passes(world: World) -> None:
    token = {"kind": "TokenRequest", "metadata": {"name": "web"}, "status": {"token": "t"}}
    world.east.answers[("POST", ONE + "/token")] = token
    answer = await run_sub(world, "POST", "token", {"spec": {}})
    assert b'"token":"t"' in answer.body and world.paths == []


async def test_method_that_a_subresource_does_not_have(world: World) -> None:
    assert (await refused(lambda: run_sub(world, "DELETE", "status", None))).code == 405


@pytest.mark.parametrize(("body", "kind"), [
    ([{"op": "test", "path": "/metadata/annotations/a", "value": "guess"}], JSON_PATCH),
    ({"metadata": {"annotations": None}}, MERGE),
    ({"metadata": {"ownerReferences": []}}, MERGE),
])  # fmt: skip
async def test_what_is_read_to_be_patched_is_read_as_the_caller(world: World, body: Any, kind: str) -> None:
    """A test of a JSON patch tells what it is compared with: under `authorization: Member` members judge that too."""
    world.context.identity = lambda call, aggregated: {"Impersonate-User": "jane"}
    try:
        await send(world, body, kind)
    except errors.StatusError as error:
        assert error.code == 422
        assert error.message.endswith("testing value /metadata/annotations/a failed: test failed")
    assert world.east.users and set(world.east.users) == {"jane"}


@pytest.mark.parametrize("kind", [APPLY, "PUT"])
async def test_what_the_front_created_keeps_its_label_when_it_is_replaced(world: World, kind: str) -> None:
    world.clock.put("east", "web", "u1")
    world.clock.marker("east", "ns", "web").labels["reclock.dev/routed"] = "fleet"
    path = "/api/v1/namespaces/ns/pods/web"
    method = "PUT" if kind == "PUT" else "PATCH"
    world.east.answers[(method, path)] = pod(uid="u1", resourceVersion="18")
    body = pod(labels={"app": "a"})
    if kind == "PUT":
        await update.update(world.context, call("PUT", path, body), PODS)
    else:
        await send(world, body, APPLY, path)
    assert world.east.sent(method)[0]["metadata"]["labels"] == {"app": "a", "reclock.dev/routed": "fleet"}


@pytest.mark.parametrize(("after", "code"), [(errors.not_found("pods", "web"), 0), (errors.unavailable("busy"), 504)])
async def test_a_binding_that_was_done_is_not_denied(world: World, after: errors.StatusError, code: int) -> None:
    """A scheduler that is told 404 or 503 takes the pod for one that is not bound."""
    world.east.answers[("POST", ONE + "/binding")] = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
    world.east.answers[("GET", ONE)] = after
    run = subresource.subresource(world.context, call("POST", ONE + "/binding", {"target": {"name": "n"}}), PODS)
    if code:
        error = await refused(lambda: run)
        assert (error.code, error.retry_after) == (code, None)
    else:
        assert (await run).status == 200


@pytest.mark.parametrize(("left", "waits"), [
    (errors.not_found("pods", "web"), True), (pod(uid="u2"), True), (pod(uid="u1"), False), (errors.unavailable("busy"), False),
])  # fmt: skip
@pytest.mark.parametrize("method", ["PATCH", "PUT"])
async def test_the_log_has_the_end_of_what_a_write_ended(world: World, method: str, left: Any, waits: bool) -> None:
    """The last finalizer of an object that is being deleted: it is answered under the version before its end."""
    world.clock.markers["ns", "web"][0].deleting = True
    world.east.answers[("GET", ONE)] = left
    if method == "PATCH":
        answer = await send(world, {"metadata": {"finalizers": None}})
    else:
        answer = await update.update(world.context, call("PUT", ONE, pod()), PODS)
    assert answer.status == 200 and bool(world.clock.deletions) is waits
