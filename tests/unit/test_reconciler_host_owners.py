"""Whether an owner on the host is there (case 2): on this word objects of users are deleted."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from services.common.errors import StatusError, not_found
from services.common.kube.resource import Resource
from services.reconciler.host_owners import HostOwners
from services.reconciler.owned import Owner

OWNER = Owner("example.com/v1beta1", "Widget", "w", "uid-w")


class Host:
    """Widgets, in some versions."""

    def __init__(self, *versions: str) -> None:
        self.versions = list(versions)
        self.widgets = {"w": {"metadata": {"name": "w", "namespace": "ns", "uid": "uid-w"}}}

    async def request(self, method: str, path: str, **options: Any) -> Any:
        if self.versions and path == "/apis/example.com":
            document: dict[str, Any] = {"kind": "APIGroup", "versions": [{"version": v} for v in self.versions]}
        elif path.removeprefix("/apis/example.com/") in self.versions:
            entry = {"name": "widgets", "kind": "Widget", "namespaced": True}
            document = {"kind": "APIResourceList", "resources": [{**entry, "name": "widgets/status"}, entry]}
        else:
            raise StatusError(404)
        return SimpleNamespace(json=lambda: document)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any]:
        if resource.version not in self.versions:
            raise StatusError(404)  # "404 page not found": no Status, nothing named
        if name not in self.widgets:
            raise not_found(resource.resource, name)
        return self.widgets[name]


class Tasks:
    """Runs nothing."""

    def spawn(self, coro: Coroutine[Any, Any, None], name: str, **options: Any) -> Any:
        coro.close()
        return SimpleNamespace(cancel=lambda: None)


async def state(owners: HostOwners) -> str:
    """Asked again while it is not known, as the queue does; what is followed has been read by then."""
    for _ in range(5):
        found = await owners.state(OWNER, "ns")
        if found != "unknown":
            return found
        for informer in owners._informers.values():
            informer.synced.set()
    return "unknown"


def follow(host: Host) -> HostOwners:
    return HostOwners(host, Tasks(), lambda uid: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("known_before", [True, False])
async def test_an_owner_whose_version_has_ended_lives_on_in_another(known_before: bool) -> None:
    host = Host("v1", "v1beta1")
    owners = follow(host)
    if known_before:
        assert await state(owners) == "alive"
    host.versions = ["v1"]
    assert await state(owners) == "alive"
    host.widgets.clear()
    assert await state(owners) == "gone"


async def test_with_its_type_all_owners_are_gone() -> None:
    host = Host("v1beta1")
    owners = follow(host)
    assert await state(owners) == "alive"
    host.versions = []
    assert await state(owners) == "gone"


async def test_another_object_of_its_name_is_not_the_owner() -> None:
    host = Host("v1beta1")
    host.widgets["w"]["metadata"]["uid"] = "another"
    assert await state(follow(host)) == "gone"
