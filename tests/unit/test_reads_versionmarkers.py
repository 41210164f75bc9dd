"""versionmarkers as a resource."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from reads_fake import FakeClock, Fleet, fleet_of, pod

from _fastpath.marker import Marker
from services.aggregator.reads import marker_rows
from services.aggregator.reads.marker_rows import Merged

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


async def test_pages_are_in_the_order_of_the_keys_as_text(fleet: Fleet) -> None:
    """`a-b/x` comes before `a/x`: no page may skip what the one before did not show."""
    for ns in ("a", "a-b", "a.b", "default", "z"):
        fleet.write("east", pod("x", ns=ns))
    _, body = await fleet.get(f"{BASE}/versionmarkers")
    whole = [(o["metadata"]["namespace"], o["metadata"]["name"]) for o in body["items"]]
    assert whole == sorted(whole, key=lambda key: f"{key[0]}/{key[1]}")
    found, token, left = [], "", []
    while True:
        _, body = await fleet.get(f"{BASE}/versionmarkers?limit=1" + (f"&continue={token}" if token else ""))
        found += [(o["metadata"]["namespace"], o["metadata"]["name"]) for o in body["items"]]
        left.append(body["metadata"].get("remainingItemCount", 0))
        token = body["metadata"].get("continue", "")
        if not token:
            break
    assert found == whole and left == list(range(len(whole) - 1, -1, -1))


async def test_a_walk_shows_the_state_at_its_version(fleet: Fleet) -> None:
    for name in ("a", "b", "c"):
        fleet.write("east", pod(name))
    code, first = await fleet.get(f"{BASE}/namespaces/default/versionmarkers?limit=1")
    for name in ("a", "b", "c", "d"):
        fleet.write("east", pod(name, changed="yes"))
    token = first["metadata"]["continue"]
    _, rest = await fleet.get(f"{BASE}/namespaces/default/versionmarkers?limit=9&continue={token}")
    items = [*first["items"], *rest["items"]]
    at = int(first["metadata"]["resourceVersion"])
    assert code == 200 and rest["metadata"]["resourceVersion"] == str(at)
    mappings = [o for o in items if o["type"] == "Mapping"]
    assert {o["object"]["name"] for o in mappings} == {"a", "b", "c"}
    assert all(int(o["metadata"]["resourceVersion"]) <= at for o in mappings)
    fleet.clock.state.log.floor = fleet.clock.head
    code, _ = await fleet.get(f"{BASE}/namespaces/default/versionmarkers?limit=9&continue={token}")
    assert code == 410


async def test_a_watch_from_far_behind_is_told_page_by_page(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_rows, "PAGE", 4)
    begin = fleet.clock.head
    for number in range(30):
        fleet.write("east" if number % 2 else "west", pod(f"p{number}"))
    async with fleet.watch(f"resourceVersion={begin}", f"{BASE}/versionmarkers") as stream:
        names = [(await stream.next())["object"]["object"]["name"] for _ in range(30)]
        fleet.write("east", pod("last"))
        names.append((await stream.next())["object"]["object"]["name"])
    assert names == [*(f"p{number}" for number in range(30)), "last"]


def test_several_logs_are_merged_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_rows, "PAGE", 4)
    one, other = FakeClock(), FakeClock()
    for number in range(40):
        clock = one if number % 3 else other
        clock.revision = 100 + number
        clock.commit({}, Marker("east", "life/0", "ns", f"p{number}", f"uid-{number}", number + 1))
    merged = Merged({clock: clock.cursor(clock.floor) for clock in (one, other)})
    bound = (one.state.base + 130) << 7
    told = []
    for _, entry in merged.upto(bound):
        told.append(entry.name)
        assert all(len(page) <= 4 for _, _, page in merged._sources)
    assert told == [f"p{number}" for number in range(30)] and merged.waiting
    told += [entry.name for _, entry in merged.upto(1 << 60)]
    assert told == [f"p{number}" for number in range(40)] and not merged.waiting
