"""Informers lose and repeat nothing: over broken watches, compaction, deletions that nobody saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kube_fake import KubeFake, eventually, pod

from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import PODS, SECRETS


class Seen:
    """What the handler was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def __call__(self, kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
        assert (old is not None) == (kind == "MODIFIED")
        self.events.append((kind, obj["metadata"]["name"], obj["metadata"]["resourceVersion"]))

    def take(self) -> list[tuple[str, str]]:
        names = [(kind, name) for kind, name, _ in self.events]
        self.events.clear()
        return names


@asynccontextmanager
async def informer(kube: KubeFake, **options: Any) -> AsyncIterator[tuple[Informer, Seen]]:
    seen = Seen()
    client = await KubeClient.connect(kube.kubeconfig(), name="east")
    made = Informer(client, PODS, handler=seen, **options)
    task = asyncio.create_task(made.run())
    try:
        await asyncio.wait_for(made.synced.wait(), 40)
        yield made, seen
    finally:
        task.cancel()
        await asyncio.wait({task})
        await client.close()


async def test_list_in_pages_then_watch() -> None:
    async with KubeFake() as kube:
        kube.page = 2
        for number in range(5):
            kube.set(pod(f"p{number}", 0))
        async with informer(kube) as (made, seen):
            assert seen.take() == [("ADDED", f"p{n}") for n in range(5)]
            assert made.get("p1", "default")["kind"] == "Pod"  # type: ignore[index]
            kube.set(pod("p1", 0, color="red"))
            kube.set(pod("new", 0))
            kube.remove("p0")
            await eventually(lambda: len(seen.events) == 3)
            assert seen.take() == [("MODIFIED", "p1"), ("ADDED", "new"), ("DELETED", "p0")]
            assert set(made.store) == {("default", n) for n in ("p1", "p2", "p3", "p4", "new")}
        assert "limit=500" in kube.requests[0][1]


async def test_a_continue_token_that_expires_starts_the_list_anew() -> None:
    async with KubeFake() as kube:
        kube.page = 2
        for number in range(5):
            kube.set(pod(f"p{number}", 0))
        kube.oldest = 3
        async with informer(kube) as (made, seen):
            assert len(seen.take()) == 5
            assert len(made.store) == 5


async def test_a_broken_watch_resumes_without_a_list() -> None:
    async with KubeFake() as kube:
        kube.set(pod("a", 0))
        async with informer(kube) as (_, seen):
            seen.take()
            await eventually(lambda: bool(kube.watches))
            kube.break_watches()
            kube.set(pod("b", 0))
            await eventually(lambda: len(seen.events) == 1)
            assert seen.take() == [("ADDED", "b")]
            assert len([path for _, path in kube.requests if "watch" not in path]) == 1


async def test_410_lists_again_and_tells_only_the_difference() -> None:
    async with KubeFake() as kube:
        for name in ("same", "changed", "gone", "replaced"):
            kube.set(pod(name, 0))
        async with informer(kube) as (made, seen):
            seen.take()
            await eventually(lambda: bool(kube.watches))
            await kube.stop()
            kube.set(pod("changed", 0, color="red"))
            kube.remove("gone")
            kube.remove("replaced")
            kube.set(pod("replaced", 0, uid="another"))
            kube.set(pod("new", 0))
            kube.compact()
            await kube.start()
            await eventually(lambda: len(seen.events) == 5)
            assert sorted(seen.take()) == [
                ("ADDED", "new"), ("ADDED", "replaced"), ("DELETED", "gone"), ("DELETED", "replaced"),
                ("MODIFIED", "changed"),
            ]  # fmt: skip
            await eventually(lambda: made.last_error == "")
            kube.set(pod("after", 0))
            await eventually(lambda: seen.take() == [("ADDED", "after")])


async def test_bookmarks_move_the_version_and_repeats_are_dropped() -> None:
    async with KubeFake() as kube:
        kube.set(pod("a", 0))
        async with informer(kube) as (made, seen):
            seen.take()
            repeated = kube.items["a"]
            kube.send("MODIFIED", repeated)
            kube.send("BOOKMARK", {"metadata": {"resourceVersion": "5000"}})
            await eventually(lambda: made._version == "5000")
            assert seen.take() == []


async def test_garbage_and_errors_are_survived() -> None:
    async with KubeFake() as kube:
        kube.set(pod("a", 0))
        async with informer(kube) as (made, seen):
            seen.take()
            await eventually(lambda: bool(kube.watches))
            kube.garbage = True
            kube.break_watches()
            await eventually(lambda: "502" in made.last_error)
            kube.garbage = False
            kube.set(pod("b", 0))
            await eventually(lambda: seen.take() == [("ADDED", "b")])


async def test_a_failing_handler_hides_no_other_object() -> None:
    async with KubeFake() as kube:
        kube.set(pod("a", 0))
        kube.set(pod("b", 0))
        told: list[str] = []

        def handler(kind: str, obj: dict[str, Any], old: dict[str, Any] | None) -> None:
            told.append(obj["metadata"]["name"])
            raise ValueError("bug")

        client = await KubeClient.connect(kube.kubeconfig(), name="east")
        made = Informer(client, PODS, handler=handler)
        task = asyncio.create_task(made.run())
        await asyncio.wait_for(made.synced.wait(), 40)
        assert told == ["a", "b"]
        task.cancel()
        await asyncio.wait({task})
        await client.close()


async def test_selectors_and_metadata_only_are_asked_for() -> None:
    async with KubeFake() as kube:
        async with informer(kube, label_selector="a=b", field_selector="c=d", metadata_only=True):
            await eventually(lambda: len(kube.requests) >= 2)
            for _, path in kube.requests:
                assert "labelSelector=a%3Db" in path
                assert "fieldSelector=c%3Dd" in path
        assert all("PartialObjectMetadata" in headers["Accept"] for headers in kube.headers)


async def test_a_type_that_is_not_served_is_empty_where_that_is_asked_for() -> None:
    async def types(request: web.Request) -> web.Response:
        return web.json_response({"kind": "APIResourceList", "groupVersion": "v1", "resources": [{"name": "pods"}]})

    kube = KubeFake()
    async with kube:
        client = await KubeClient.connect(kube.kubeconfig(), name="east")
        secrets = [Informer(client, SECRETS, absent_is_empty=absent) for absent in (True, False)]
        running = [asyncio.create_task(informer.run()) for informer in secrets]
        # A 404 alone says nothing: it may be a proxy's.
        await eventually(lambda: all(informer.last_error for informer in secrets))
        assert not secrets[0].synced.is_set()
        await kube.stop()
        kube.extra_routes = [web.get("/api/v1", types)]
        await kube.start()
        await eventually(secrets[0].synced.is_set)
        assert (secrets[0].store, secrets[0].last_error) == ({}, "")
        assert not secrets[1].synced.is_set()
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await client.close()
