"""Kubeconfig files, directories and globs; changes, half-written and broken ones."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_fake import eventually, kubeconfig

from services.discovery.config import StaticCluster
from services.discovery.providers import files
from services.discovery.providers.base import Reading
from services.discovery.providers.files import FileProviderTask, FileState, expand, read_contexts
from services.discovery.providers.static import StaticProviderTask


def several(*names: str, server: str = "https://{}:1") -> dict[str, Any]:
    """A kubeconfig of several contexts."""
    configs = [kubeconfig(name, {"server": server.format(name)}, {"token": "t"}) for name in names]
    merged = configs[0]
    for config in configs[1:]:
        for section in ("clusters", "users", "contexts"):
            merged[section].extend(config[section])
    return merged


def put(path: Path, config: Any, age: float = 10) -> None:
    """Write a file at once, as if some time ago."""
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_text(yaml.safe_dump(config) if not isinstance(config, str) else config)
    os.utime(fresh, (time.time() - age,) * 2)
    fresh.rename(path)


class Holder:
    """Publishes into itself, and remembers names as the registry does."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []
        self.names: dict[str, str] = {}

    def publish(self, reading: Reading) -> None:
        self.readings.append(reading)
        self.names = {found.name: found.source for found in reading.clusters}

    @property
    def clusters(self) -> dict[str, str]:
        return {found.name: found.server for found in self.readings[-1].clusters} if self.readings else {}

    @property
    def problems(self) -> str:
        return "\n".join(f"{p.source}: {p.message}" for p in self.readings[-1].problems)


@asynccontextmanager
async def provider(*paths: str, rescan: float = 60) -> AsyncIterator[Holder]:
    holder = Holder()
    task = asyncio.create_task(
        FileProviderTask("files", paths, lambda: holder.names, rescan=rescan).run(holder.publish)
    )
    try:
        await eventually(lambda: bool(holder.readings))
        yield holder
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_files_directories_and_globs_with_all_contexts(tmp_path: Path) -> None:
    for folder in ("dir", "globbed/one", "globbed/two"):
        (tmp_path / folder).mkdir(parents=True)
    put(tmp_path / "file", several("a", "b"))
    put(tmp_path / "dir/c.yaml", several("c"))
    put(tmp_path / "dir/.hidden", several("no"))
    put(tmp_path / "globbed/one/x.conf", several("d"))
    put(tmp_path / "globbed/two/x.conf", several("e"))
    put(tmp_path / "globbed/two/y.txt", several("no"))
    paths = [f"{tmp_path}/file", f"{tmp_path}/dir", f"{tmp_path}/globbed/*/*.conf"]
    async with provider(*paths) as holder:
        assert set(holder.clusters) == {"a", "b", "c", "d", "e"}
        assert holder.problems == ""
        put(tmp_path / "globbed/one/z.conf", several("f"))
        put(tmp_path / "dir/g.yaml", several("g"))
        await eventually(lambda: {"f", "g"} <= set(holder.clusters))


async def test_added_changed_and_removed_by_inotify(tmp_path: Path) -> None:
    put(tmp_path / "a", several("a"))
    async with provider(str(tmp_path)) as holder:
        put(tmp_path / "b", several("b"))
        await eventually(lambda: set(holder.clusters) == {"a", "b"})
        put(tmp_path / "b", several("b", server="https://moved-{}:1"))
        await eventually(lambda: holder.clusters.get("b") == "https://moved-b:1")
        (tmp_path / "a").unlink()
        await eventually(lambda: set(holder.clusters) == {"b"})


async def test_a_removed_context_goes(tmp_path: Path) -> None:
    put(tmp_path / "a", several("a", "b"))
    async with provider(str(tmp_path)) as holder:
        assert set(holder.clusters) == {"a", "b"}
        put(tmp_path / "a", several("a"))
        await eventually(lambda: set(holder.clusters) == {"a"})


def test_a_file_cut_at_any_place_loses_no_cluster(tmp_path: Path) -> None:
    path = tmp_path / "a"
    text = yaml.safe_dump(several("a", "b", "c"))
    put(path, text)
    good = read_contexts(path, FileState())
    assert set(good.contexts) == {"a", "b", "c"}
    for length in range(len(text)):
        put(path, text[:length], age=0)
        state = read_contexts(path, good)
        assert set(state.contexts) == {"a", "b", "c"}, text[:length]


async def test_a_file_that_shrinks_is_believed_after_a_while(tmp_path: Path) -> None:
    files_quiet, files.QUIET = files.QUIET, 0.3
    try:
        put(tmp_path / "a", several("a", "b"))
        async with provider(str(tmp_path)) as holder:
            put(tmp_path / "a", several("a"), age=0)
            await eventually(lambda: len(holder.readings) > 1)
            assert set(holder.readings[1].clusters and holder.names) >= {"a"}
            await eventually(lambda: set(holder.clusters) == {"a"})
    finally:
        files.QUIET = files_quiet


async def test_broken_files_keep_their_clusters_and_say_why(tmp_path: Path) -> None:
    put(tmp_path / "a", several("a"))
    put(tmp_path / "b", several("b"))
    async with provider(str(tmp_path)) as holder:
        put(tmp_path / "a", "clusters: [")
        await eventually(lambda: "no YAML" in holder.problems)
        assert set(holder.clusters) == {"a", "b"}
        assert holder.readings[-1].unreadable == (f"{tmp_path}/a#",)
        assert [found.problem for found in holder.readings[-1].clusters] == ["is no YAML at line 2", ""]
        put(tmp_path / "a", several("a"))
        await eventually(lambda: holder.problems == "")


async def test_a_bad_context_is_reported_beside_good_ones(tmp_path: Path) -> None:
    config = several("good", "bad")
    config["clusters"][1]["cluster"]["server"] = "nonsense"
    put(tmp_path / "a", config)
    async with provider(str(tmp_path)) as holder:
        assert set(holder.clusters) == {"good"}
        assert "context 'bad'" in holder.problems


async def test_the_same_name_twice_is_reported_and_the_first_stays(tmp_path: Path) -> None:
    put(tmp_path / "b", several("east", server="https://first:1"))
    async with provider(str(tmp_path)) as holder:
        put(tmp_path / "a", several("east", server="https://second:1"))
        await eventually(lambda: len(holder.clusters) == 2)
        assert holder.clusters == {"east": "https://first:1", "a-east": "https://second:1"}
        assert "'east' is taken" in holder.problems


async def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    async with provider(f"{tmp_path}/file", f"{tmp_path}/no/dir/", f"{tmp_path}/*.conf") as holder:
        assert holder.clusters == {}
        assert "/file: does not exist" in holder.problems
        assert "/no/dir: does not exist" in holder.problems
        assert "matches no file" in holder.problems
        put(tmp_path / "file", several("a"))
        await eventually(lambda: set(holder.clusters) == {"a"})


async def test_a_folder_that_vanishes_keeps_its_clusters(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    put(tmp_path / "mount/a", several("a"))
    async with provider(f"{tmp_path}/mount/", rescan=0.2) as holder:
        (tmp_path / "mount").rename(tmp_path / "away")
        await eventually(lambda: "does not exist" in holder.problems)
        assert set(holder.clusters) == {"a"}
        (tmp_path / "away").rename(tmp_path / "mount")
        await eventually(lambda: holder.problems == "")
        put(tmp_path / "mount/b", several("b"))
        await eventually(lambda: set(holder.clusters) == {"a", "b"})


def test_kubernetes_secret_mounts_are_read(tmp_path: Path) -> None:
    (tmp_path / "..2024").mkdir()
    put(tmp_path / "..2024/a", several("a"))
    (tmp_path / "..data").symlink_to("..2024")
    (tmp_path / "a").symlink_to("..data/a")
    assert expand([str(tmp_path)]).files == (tmp_path / "a",)


async def test_static_clusters_follow_their_files(tmp_path: Path) -> None:
    put(tmp_path / "a", several("whatever"))
    clusters = [
        StaticCluster(name="east", kubeconfig=f"{tmp_path}/a", labels={"region": "eu"}),
        StaticCluster(name="west", kubeconfig=f"{tmp_path}/missing"),
        StaticCluster(name="east", kubeconfig=f"{tmp_path}/a"),
    ]
    holder = Holder()
    task = asyncio.create_task(StaticProviderTask("static", clusters, rescan=60).run(holder.publish))
    await eventually(lambda: bool(holder.readings))
    assert set(holder.clusters) == {"east"}
    assert holder.readings[0].clusters[0].labels == {"region": "eu"}
    assert "missing: cannot be read" in holder.problems
    assert "'east' is given twice" in holder.problems
    put(tmp_path / "missing", several("x"))
    await eventually(lambda: set(holder.clusters) == {"east", "west"})
    put(tmp_path / "a", "garbage: [")
    await eventually(lambda: "a: is no YAML" in holder.problems)
    assert set(holder.clusters) == {"east", "west"}
    task.cancel()
    await asyncio.wait({task})


def test_a_file_that_says_the_same_is_not_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    parse = files.kc.parse

    def counting(data: bytes, **more: bool) -> dict[str, Any]:
        decoded.append(data)
        return parse(data, **more)

    monkeypatch.setattr(files.kc, "parse", counting)
    monkeypatch.setattr(files, "TICK", -1.0)
    plain, key = tmp_path / "plain", tmp_path / "token"
    put(plain, several("east"))
    state = read_contexts(plain, FileState())
    assert read_contexts(plain, state) is state
    assert len(decoded) == 1
    put(plain, several("east", "west"))
    assert set(read_contexts(plain, state).contexts) == {"east", "west"}
    # One that names other files is read every time: those are rotated without it.
    config = several("east")
    config["users"][0]["user"] = {"tokenFile": str(key)}
    key.write_text("one")
    put(plain, config)
    state = read_contexts(plain, FileState())
    key.write_text("two")
    state = read_contexts(plain, state)
    assert state.contexts["east"]["users"][0]["user"]["token"] == "two"
    # A bad one too: what it lacks may come.
    key.unlink()
    state = read_contexts(plain, state)
    assert state.bad and read_contexts(plain, state) is not state
