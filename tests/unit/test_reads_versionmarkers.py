"""versionmarkers as a resource."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from reads_fake import Fleet, fleet_of, pod

BASE = "/apis/reclock.dev/v1alpha1"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with fleet_of("east", "west") as fleet:
        yield fleet


async def test_both_types_are_listed(fleet: Fleet) -> None:
    fleet.write("east", pod("a", app="web"))
    code, body = await fleet.get(f"{BASE}/namespaces/default/versionmarkers")
    assert code == 200 and body["kind"] == "VersionMarkerList"
    mapping = next(o for o in body["items"] if o["type"] == "Mapping")
    marker = fleet.clock.marker("east", "default", "a")
    assert mapping["store"] == {"cluster": "east", "incarnation": "east-uid/0"}
    assert mapping["object"] == {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "a",
                                 "uid": "uid-default-a", "resourceVersion": "101"}  # fmt: skip
    assert mapping["template"]["metadata"] == {"resourceVersion": str(marker.fleet), "labels": {"app": "web"}}
    bookmarks = [o for o in body["items"] if o["type"] == "Bookmark"]
    assert {o["store"]["cluster"]: o["object"]["resourceVersion"] for o in bookmarks} == {"east": "101", "west": "100"}
    assert len({o["metadata"]["name"] for o in body["items"]}) == 3


async def test_hidden_objects_are_listed_and_told_apart(fleet: Fleet) -> None:
    fleet.write("east", pod("a", uid="old"))
    fleet.write("west", pod("a", uid="new"))
    _, body = await fleet.get(f"{BASE}/versionmarkers?labelSelector=reclock.dev/resource%3Dpods")
    shown = {o["object"]["uid"]: o["status"]["shown"] for o in body["items"] if o["type"] == "Mapping"}
    assert shown == {"old": True, "new": False}


async def test_get_table_and_404(fleet: Fleet) -> None:
    fleet.write("east", pod("a"))
    _, body = await fleet.get(f"{BASE}/namespaces/default/versionmarkers")
    name = next(o for o in body["items"] if o["type"] == "Mapping")["metadata"]["name"]
    path = f"{BASE}/namespaces/default/versionmarkers/{name}"
    code, one = await fleet.get(path)
    assert code == 200 and one["metadata"]["name"] == name
    code, table = await fleet.get(path, Accept=TABLE)
    assert table["kind"] == "Table" and table["rows"][0]["cells"][:4] == [name, "Mapping", "east", "pod/a"]
    code, _ = await fleet.get(path + "x")
    assert code == 404


async def test_pages(fleet: Fleet) -> None:
    for i in range(7):
        fleet.write("east", pod(f"p{i}", ns=f"n{i % 2}"))
    found: list[str] = []
    token = ""
    while True:
        code, body = await fleet.get(f"{BASE}/versionmarkers?limit=2" + (f"&continue={token}" if token else ""))
        assert code == 200 and len(body["items"]) <= 2
        found += [o["metadata"]["name"] for o in body["items"]]
        token = body["metadata"].get("continue", "")
        if not token:
            break
    assert len(found) == len(set(found)) == 9  # 7 objects, 2 positions


async def test_watch_tells_changes_of_markers(fleet: Fleet) -> None:
    async with fleet.watch(f"resourceVersion={fleet.clock.head}", f"{BASE}/namespaces/default/versionmarkers") as stream:
        fleet.write("east", pod("a"))
        fleet.write("east", pod("other", ns="elsewhere"))
        fleet.write("east", pod("a", n="2"))
        fleet.write("east", pod("a"), delete=True)
        events = [await stream.next() for _ in range(3)]
    assert [e["type"] for e in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert all(e["object"]["object"]["name"] == "a" for e in events)
    numbers = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
    assert numbers == sorted(set(numbers))
