"""Informers of the torture run: list and watch, or WatchList; they resume at another replica, and record all."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from tests.proof.history import Bookmark, Ended, Event, History, Key, Listed, Opened, Seen
from tests.torture.wire import FAILURES, IGNORED, JSON, PATH, WARNED, Obj, Refused, Server, seen_of

END_OF_LIST = "k8s.io/initial-events-end"
PARTIAL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Informer:
    """One client; `run` is its task. `held` is its store, `history` what it was told."""

    def __init__(
        self, name: str, fronts: Sequence[Server], seed: int, *, group: str = "", streaming: bool = False, metadata: bool = False,
    ) -> None:  # fmt: skip
        self.history = History(name, f"group={group}" if group else "all")
        self.held: dict[Key, Seen] = {}
        self.relists = 0
        self.resumes = 0
        self.events = 0
        self._fronts = fronts
        self._random = random.Random(seed)
        self._selector = {"labelSelector": f"group={group}"} if group else {}
        self._streaming = streaming
        self._accept = (PARTIAL_LIST, PARTIAL) if metadata else (JSON, JSON)
        self._version = 0
        self._at = self._random.randrange(len(fronts))

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                front = self._fronts[self._at % len(self._fronts)]
                if not self._version:
                    await (self._stream(front) if self._streaming else self._list(front))
                else:
                    await self._follow(front)
            except Refused as error:
                if error.code == 410:
                    self._expired(str(error))
                else:
                    await self._elsewhere()
            except FAILURES:
                self._record_end()
                await self._elsewhere()

    async def _elsewhere(self) -> None:
        self._at += 1
        await asyncio.sleep(self._random.uniform(0.2, 1.5))

    def _record_end(self) -> None:
        records = self.history.records
        if records and isinstance(records[-1], Opened | Event | Bookmark):
            records.append(Ended(time.monotonic(), 0))

    def _expired(self, message: str) -> None:
        self.history.records.append(Ended(time.monotonic(), 410, message))
        self._version = 0
        self.relists += 1

    async def _list(self, front: Server) -> None:
        begin = time.monotonic()
        answer = await front.request("GET", PATH, query=self._selector, timeout=15, accept=self._accept[0])
        self._take(begin, int(answer["metadata"]["resourceVersion"]), [seen_of(one) for one in answer["items"]], front, partial=WARNED in answer)

    def _take(self, begin: float, version: int, items: list[Seen], front: Server, *, partial: bool = False) -> None:
        items = [one for one in items if one.name != IGNORED]
        self.held = {one.key: one for one in items}
        self._version = version
        self.history.records.append(Listed(begin, time.monotonic(), version, tuple(items), front.name, partial=partial))

    def _query(self) -> dict[str, str]:
        return {
            **self._selector, "allowWatchBookmarks": "true", "timeoutSeconds": str(self._random.randint(20, 90)),
        }  # fmt: skip

    async def _stream(self, front: Server) -> None:
        """WatchList: the state as ADDED, a bookmark, then events."""
        query = {**self._query(), "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        begin = time.monotonic()
        items: list[Seen] = []
        warned: list[bool] = []
        listed = False
        async for frame in front.watch(PATH, query, accept=self._accept[1], warned=warned):
            if listed:
                self._event(frame)
            elif frame["type"] == "ADDED":
                items.append(seen_of(frame["object"]))
            elif frame["type"] == "BOOKMARK":
                metadata = frame["object"]["metadata"]
                if (metadata.get("annotations") or {}).get(END_OF_LIST) == "true":
                    self._take(begin, int(metadata["resourceVersion"]), items, front, partial=bool(warned))
                    self.history.records.append(Opened(time.monotonic(), self._version, front.name))
                    listed = True
            else:
                raise Refused(int(frame["object"].get("code", 500)), f"{frame['type']} before the list's end")
        self._record_end()

    async def _follow(self, front: Server) -> None:
        query = {**self._query(), "resourceVersion": str(self._version)}
        opened = False
        self.resumes += 1
        async for frame in front.watch(PATH, query, accept=self._accept[1]):
            if not opened:
                self.history.records.append(Opened(time.monotonic(), self._version, front.name))
                opened = True
            self._event(frame)
        self._record_end()
        if self._random.random() < 0.5:
            self._at += 1

    def _event(self, frame: Obj) -> None:
        kind, obj = frame["type"], frame["object"]
        if kind == "ERROR":
            raise Refused(int(obj.get("code", 500)), str(obj.get("message", "")))
        if kind == "BOOKMARK":
            self._version = int(obj["metadata"]["resourceVersion"])
            self.history.records.append(Bookmark(time.monotonic(), self._version))
            return
        seen = seen_of(obj)
        self._version = seen.fleet
        if seen.name == IGNORED:
            return
        self.events += 1
        self.history.records.append(Event(time.monotonic(), kind, seen))
        if kind == "DELETED":
            self.held.pop(seen.key, None)
        else:
            self.held[seen.key] = seen
