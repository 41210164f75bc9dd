"""Bodies whose metadata is none: the client's error, never ours."""

from __future__ import annotations

from typing import Any

import pytest
from writes_fake import PODS, World, call, pod, refused

from services.aggregator.writes import Writes
from services.aggregator.writes.patch import JSON_PATCH, MERGE, STRATEGIC

ONE = "/api/v1/namespaces/ns/pods/web"


@pytest.mark.parametrize(
    ("method", "body", "kind"),
    [
        *(("POST", metadata, "application/json") for metadata in ({"labels": ["a"]}, {"annotations": "a"}, {"labels": {"a": 1}})),
        ("PUT", {"labels": "a"}, "application/json"),
        *(("PATCH", {"labels": {"a": "b"}, "ownerReferences": references}, kind)
          for references in ("x", {"a": "b"}, [1], [{"uid": 5}]) for kind in (MERGE, STRATEGIC)),
        *(("PATCH", {one: "x", "ownerReferences": []}, kind) for one in ("labels", "annotations") for kind in (MERGE, STRATEGIC)),
        *(("PATCH", value, JSON_PATCH) for value in (None, [], "x", 5, {"labels": "x"}, {"ownerReferences": [1]})),
        ("PATCH", {"labels": "a"}, "application/apply-patch+yaml"),
    ],
)  # fmt: skip
async def test_metadata_of_another_shape_is_the_clients_error(method: str, body: Any, kind: str) -> None:
    """400 or 422, as kube-apiserver says, and not 500 with a trace in the log."""
    world = World()
    world.clock.put("east", "web", "u1")
    world.clock.markers["ns", "web"][0].labels = {"reclock.dev/routed": "fleet"}
    world.east.answers[("GET", ONE)] = pod(uid="u1", resourceVersion="17")
    patched = [{"op": "replace", "path": "/metadata", "value": body}] if kind == JSON_PATCH else None
    named = {"name": "new", **body} if method == "POST" else body
    sent = patched or {"apiVersion": "v1", "kind": "Pod", "metadata": named}
    made = call(method, ONE.removesuffix("/web") if method == "POST" else ONE, sent, kind)
    verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}[method]
    error = await refused(lambda: getattr(Writes(world.context), verb)(made, PODS))
    assert error.code in (400, 422), error.message
    assert not any(world.east.sent(each) for each in ("POST", "PUT", "PATCH"))


async def test_preconditions_that_are_null_are_none() -> None:
    world = World()
    world.clock.put("east", "web", "u1")
    world.east.answers[("DELETE", ONE)] = {"kind": "Status"}
    assert (await Writes(world.context).delete(call("DELETE", ONE, {"preconditions": None}), PODS)).status == 200
    everywhere = ONE.removesuffix("/web")
    for one in (world.east, world.west):
        one.answers[("DELETE", everywhere)] = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}
    made = call("DELETE", everywhere, {"preconditions": None})
    assert (await Writes(world.context).deletecollection(made, PODS)).status == 200
