"""The simulated cluster's lists and watches against what was recorded while it changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.local.sim import Cluster, Refused, Request, Response, World


def config(name: str, namespace: str = "default", **labels: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"x": "1"}}


def small() -> Cluster:
    """A cluster in which nothing happens by itself, with the namespaces a, a-b and b."""
    cluster = World(3).add("east", role="none", managed_fields=False)
    for name in ("a", "a-b", "b"):
        cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return cluster


def contents(cluster: Cluster) -> dict[str, int]:
    return {key: state.version for key, state in cluster.states("configmaps").items()}


actions = st.lists(
    st.tuples(
        st.sampled_from(["create", "label", "delete"]), st.sampled_from(["a", "a-b", "b"]), st.integers(0, 4)
    ),
    max_size=40,
)


def play(cluster: Cluster, steps: list[tuple[str, str, int]]) -> dict[int, dict[str, int]]:
    """Does the steps; the contents as of each revision."""
    then = {cluster.revision: contents(cluster)}
    for number, (what, namespace, index) in enumerate(steps):
        name = f"c{index}"
        try:
            if what == "create":
                cluster.create(config(name, namespace, odd=str(index % 2)))
            elif what == "delete":
                cluster.delete("configmaps", namespace, name)
            else:
                change = {"metadata": {"labels": {"odd": str(number % 2)}}}
                cluster.patch("configmaps", namespace, name, change)
        except Refused as refused:
            assert refused.code in (404, 409)
        then[cluster.revision] = contents(cluster)
    return then


@settings(max_examples=25, deadline=None)
@given(actions, st.integers(1, 4))
def test_exact_lists_and_their_pages_are_what_was_there(
    steps: list[tuple[str, str, int]], limit: int
) -> None:
    cluster = small()
    then = play(cluster, steps)
    for version, known in then.items():
        exact = {"resourceVersion": str(version), "resourceVersionMatch": "Exact"}
        page = cluster.list("configmaps", **exact)
        assert {state.key: state.version for state in page.states} == known
        assert [state.key for state in page.states] == sorted(known), "key order is the etcd's"
        seen: list[str] = []
        page = cluster.list("configmaps", **exact, limit=str(limit))
        while True:
            assert page.version == version
            seen += [state.key for state in page.states]
            if page.token:
                assert page.remaining == len(known) - len(seen)
            else:
                break
            page = cluster.list("configmaps", limit=str(limit), continue_=page.token)
        assert seen == sorted(known)


@settings(max_examples=25, deadline=None)
@given(actions, actions, st.sampled_from(["", "odd=1", "odd!=1,odd"]), st.sampled_from([None, "a", "b"]))
def test_a_watch_leads_from_any_list_to_the_next(
    first: list[tuple[str, str, int]],
    second: list[tuple[str, str, int]],
    selector: str,
    namespace: str | None,
) -> None:
    cluster = small()
    play(cluster, first)
    query = {"labelSelector": selector} if selector else {}
    page = cluster.list("configmaps", namespace, **query)
    held = {state.key: state.version for state in page.states}
    live = cluster.watch("configmaps", namespace, resourceVersion=str(page.version), **query)
    play(cluster, second)
    late = cluster.watch("configmaps", namespace, resourceVersion=str(page.version), **query)
    events = live.take()
    assert [(e.kind, e.version) for e in events] == [(e.kind, e.version) for e in late.take()]
    versions = [event.version for event in events]
    assert versions == sorted(set(versions))
    for event in events:
        assert event.state is not None
        if event.kind == "DELETED":
            del held[event.state.key]
        else:
            assert (event.kind == "ADDED") == (event.state.key not in held)
            held[event.state.key] = event.version
    now = cluster.list("configmaps", namespace, **query)
    assert held == {state.key: state.version for state in now.states}


def answer(cluster: Cluster, path: str, **query: str) -> tuple[int, dict[str, Any]]:
    found = cluster.handle(Request("GET", path, {k.rstrip("_"): v for k, v in query.items()}))
    assert isinstance(found, Response)
    return found.status, json.loads(found.body)


def test_compaction_refuses_old_lists_and_watches_as_the_api_server_does() -> None:
    cluster = small()
    for number in range(3):
        cluster.create(config(f"c{number}", "a"))
    _, page = answer(cluster, "/api/v1/namespaces/a/configmaps", limit="1")
    old = cluster.revision
    cluster.create(config("c9", "a"))
    cluster.compact()
    status, body = answer(
        cluster, "/api/v1/namespaces/a/configmaps", limit="1", continue_=page["metadata"]["continue"]
    )
    assert (status, body["reason"]) == (410, "Expired")
    status, body = answer(
        cluster, "/api/v1/namespaces/a/configmaps", limit="9", continue_=body["metadata"]["continue"]
    )
    assert status == 200 and [item["metadata"]["name"] for item in body["items"]] == ["c1", "c2", "c9"]
    status, body = answer(
        cluster, "/api/v1/namespaces/a/configmaps", resourceVersion=str(old), resourceVersionMatch="Exact"
    )
    assert (status, body["message"]) == (410, "The resourceVersion for the provided list is too old.")
    (event,) = cluster.watch("configmaps", resourceVersion=str(old)).take()
    assert event.error is not None
    assert event.error.message == f"too old resource version: {old} ({cluster.revision})"


def test_watch_list_sends_what_is_there_one_mark_and_then_what_comes() -> None:
    cluster = small()
    cluster.create(config("c0", "a"))
    watch = cluster.watch(
        "configmaps", "a", sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="true"
    )  # fmt: skip
    cluster.create(config("c1", "a"))
    cluster.bookmark()
    kinds = [(event.kind, event.initial_end) for event in watch.take()]
    assert kinds == [("ADDED", False), ("BOOKMARK", True), ("ADDED", False), ("BOOKMARK", False)]


def test_a_restored_cluster_repeats_versions_and_a_new_one_has_another_uid() -> None:
    cluster = small()
    cluster.create(config("c0", "a"))
    backup, uid = cluster.backup(), cluster.uid
    cluster.create(config("c1", "a"))
    later = cluster.revision
    watch = cluster.watch("configmaps")
    cluster.restore(backup)
    assert watch.closed and cluster.revision == backup.revision and cluster.uid == uid
    cluster.create(config("other", "a"))
    assert cluster.revision == later and "a/c1" not in cluster.states("configmaps")
    cluster.reincarnate()
    assert cluster.uid != uid and "a/c0" not in cluster.states("configmaps")


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ({"resourceVersion": "99999"}, 504, "Timeout: Too large resource version: 99999, current: "),
        ({"continue_": "!"}, 400, "invalid continue token: "),
        ({"labelSelector": "a in (b"}, 400, "unable to parse requirement: "),
        ({"fieldSelector": "spec.x=1"}, 400, '"spec.x" is not a known field selector: '),
        ({"resourceVersionMatch": "Exact"}, 422, 'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: '),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(query: dict[str, str], code: int, message: str) -> None:
    status, body = answer(small(), "/api/v1/configmaps", **query)
    assert status == code == body["code"]
    assert body["message"].startswith(message)
