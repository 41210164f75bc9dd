"""Clients of every kind of read and of writes, which record what they were told for `tests.proof.checker`."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.proof.history import Bookmark, Ended, Event, Got, History, Key, Listed, Opened, Seen, Wrote
from tests.proof.virtual.members import GROUPS, NAMESPACE, STAMP, pod
from tests.proof.virtual.process import Replica
from tests.proof.virtual.wire import Broken, Connection, Refused, ask

CLUSTER = "reclock.dev/cluster"
COUNT = "proof/count"
END_OF_LIST = "k8s.io/initial-events-end"
MERGE = "application/merge-patch+json"
COLLECTION = f"/api/v1/namespaces/{NAMESPACE}/pods"
Kind = dict[str, str]


@dataclass(frozen=True)
class Manner:
    """How an informer reads."""

    name: str
    first: str = ""
    """What it asks for first: "" the most recent, "0" whatever is there."""
    limit: int = 0
    streaming: bool = False
    selector: str = ""
    field: str = ""

    @property
    def scope(self) -> str:
        return self.selector or self.field or "all"


MANNERS = (
    Manner("plain"), Manner("cached", first="0"), Manner("paged", limit=2), Manner("streaming", streaming=True),
    Manner("labels", selector="group=a"), Manner("labels streaming", selector="group=a", streaming=True),
    Manner("one", field="metadata.name=a0"), Manner("phase", field="status.phase=Pending"),
)  # fmt: skip


def seen_of(obj: dict[str, Any]) -> Seen:
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    return Seen(
        metadata["namespace"], metadata["name"], metadata["uid"], annotations.get(CLUSTER, "?"),
        int(metadata["resourceVersion"]), annotations.get(STAMP, ""),
    )  # fmt: skip


class Client:
    """What all have: replicas to choose from, a history, time."""

    def __init__(self, name: str, scope: str, replicas: list[Replica], seed: int) -> None:
        self.history = History(name, scope)
        self.random = random.Random(seed)
        self._replicas = replicas

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def replica(self) -> Replica:
        """Any that is up. Broken when there is none."""
        up = [one for one in self._replicas if one.server is not None]
        if not up:
            raise Broken("no replica is up")
        return self.random.choice(up)

    async def ask(self, replica: Replica, method: str, path: str, query: Any = None, body: Any = None, **kw: Any) -> Any:
        if replica.server is None:
            raise Broken("it went")
        return await ask(replica.server, method, path, query, body, **kw)

    def note(self, record: Any) -> None:
        self.history.records.append(record)


class Informer(Client):
    """Lists and watches, resumes wherever it likes, lists anew on 410. `frozen`: it does not read."""

    def __init__(self, name: str, manner: Manner, replicas: list[Replica], seed: int) -> None:
        super().__init__(name, manner.scope, replicas, seed)
        self.manner = manner
        self.held: dict[Key, Seen] = {}
        self.version = 0
        self.newest = 0
        self.frozen = False
        self.relists = 0
        self._most = 0
        self.delivered: Callable[[Informer, Seen], None] = lambda client, seen: None
        self.gaps: Callable[[], int] = lambda: 0
        """Changes of gap keys so far: a WatchList bears no Warning."""
        self._connection: Connection | None = None

    @property
    def most(self) -> int:
        """Bytes that waited for it at most."""
        return max(self._most, self._connection.pipe.most if self._connection is not None else 0)

    @property
    def watches(self) -> bool:
        return self._connection is not None and bool(self.version)

    def disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def run(self) -> None:
        while True:
            try:
                if self.version:
                    await self._follow()
                elif self.manner.streaming:
                    await self._stream()
                else:
                    await self._list()
            except Refused as error:
                if error.code == 410 and self.version:
                    self.note(Ended(self.now, 410, str(error)))
                    self.version = 0
                    self.relists += 1
                else:
                    self._broke()
                await asyncio.sleep(self.random.choice((0.01, 0.2)))
            except Broken:
                self._broke()
                await asyncio.sleep(self.random.choice((0.0, 0.02, 0.2)))

    def _broke(self) -> None:
        if self.history.records and isinstance(self.history.records[-1], Opened | Event | Bookmark):
            self.note(Ended(self.now, 0))

    def _query(self) -> Kind:
        one = self.manner
        return {
            **({"labelSelector": one.selector} if one.selector else {}),
            **({"fieldSelector": one.field} if one.field else {}),
        }

    async def _list(self) -> None:
        query, replica, begin = self._query(), self.replica(), self.now
        consistent = True
        if self.manner.first and not self.newest:
            query["resourceVersion"], consistent = self.manner.first, False
        elif self.newest and self.random.random() < 0.3:
            query |= {"resourceVersion": str(self.newest), "resourceVersionMatch": "NotOlderThan"}
            consistent = False
        if self.manner.limit:
            query["limit"] = str(self.manner.limit)
        items: list[Seen] = []
        partial = False
        while True:
            answer, headers = await self.ask(replica, "GET", COLLECTION, query)
            items += [seen_of(one) for one in answer["items"]]
            partial |= "warning" in headers
            token = answer["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
            query.pop("resourceVersion", None)
            query.pop("resourceVersionMatch", None)
            replica = self.replica()
        self._take(begin, int(answer["metadata"]["resourceVersion"]), items, replica, consistent, partial)

    def _take(
        self, begin: float, version: int, items: list[Seen], replica: Replica, consistent: bool, partial: bool
    ) -> None:
        self.held = {one.key: one for one in items}
        assert len(self.held) == len(items), f"{self.history.client}: two objects of one key in a list"
        self.version = version
        self.newest = max(self.newest, version)
        self.note(Listed(begin, self.now, version, tuple(items), replica.name, consistent=consistent, partial=partial))

    def _watching(self) -> Kind:
        return {**self._query(), "watch": "1", "allowWatchBookmarks": "true",
                "timeoutSeconds": str(self.random.choice((2, 20, 90)))}  # fmt: skip

    async def _open(self, replica: Replica, query: Kind) -> Connection:
        if replica.server is None:
            raise Broken("it went")
        self._connection = connection = Connection(replica.server, "GET", COLLECTION, query, None, "application/json")
        await connection.head()
        if connection.status >= 400:
            text = b"".join([chunk async for chunk in connection.chunks()])
            raise Refused(connection.status, str(json.loads(text).get("message", "")))
        return connection

    async def _frames(self, replica: Replica, query: Kind) -> Any:
        connection = await self._open(replica, query)
        rest = b""
        try:
            async for chunk in connection.chunks():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        while self.frozen and not connection.pipe.ended:  # noqa: ASYNC110 - time is virtual
                            await asyncio.sleep(0.25)
                        frame = json.loads(line)
                        if frame["type"] == "ERROR":
                            status = frame["object"]
                            raise Refused(int(status.get("code", 500)), str(status.get("message", "")))
                        yield frame
        finally:
            self._most = self.most
            self._connection = None
            connection.close()

    async def _stream(self) -> None:
        """WatchList."""
        replica, begin, listed, gaps = self.replica(), self.now, False, self.gaps()
        query = {**self._watching(), "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        items: list[Seen] = []
        frames = self._frames(replica, query)
        async for frame in frames:
            if listed:
                self._event(frame)
            elif frame["type"] == "ADDED":
                items.append(seen_of(frame["object"]))
            else:
                metadata = frame["object"]["metadata"]
                assert frame["type"] == "BOOKMARK", f"{frame['type']} before the list's end"
                assert metadata["annotations"] == {END_OF_LIST: "true"}, "a bookmark before the list's end"
                listed = True
                partial = self.gaps() != gaps
                self._take(begin, int(metadata["resourceVersion"]), items, replica, True, partial)
                self.note(Opened(self.now, self.version, replica.name))
        self._broke()

    async def _follow(self) -> None:
        replica = self.replica()
        opened = False
        async for frame in self._frames(replica, {**self._watching(), "resourceVersion": str(self.version)}):
            if not opened:
                self.note(Opened(self.now, self.version, replica.name))
                opened = True
            self._event(frame)
        self._broke()

    def _event(self, frame: dict[str, Any]) -> None:
        kind, obj = frame["type"], frame["object"]
        if kind == "BOOKMARK":
            annotations = obj["metadata"].get("annotations") or {}
            assert END_OF_LIST not in annotations, "a second end of the list"
            self.version = int(obj["metadata"]["resourceVersion"])
            self.newest = max(self.newest, self.version)
            self.note(Bookmark(self.now, self.version))
            return
        seen = seen_of(obj)
        self.version = seen.fleet
        self.newest = max(self.newest, self.version)
        self.note(Event(self.now, kind, seen))
        if kind == "DELETED":
            self.held.pop(seen.key, None)
        else:
            self.held[seen.key] = seen
        self.delivered(self, seen)


class Looker(Client):
    """Gets and lists aside: most recent, at a version, exactly at one, whatever is there."""

    async def once(self, name: str, what: int) -> None:
        try:
            await (self._get(name, cached=what == 1) if what < 3 else self._list(what))
        except (Broken, Refused):
            return

    async def _get(self, name: str, *, cached: bool) -> None:
        begin, replica = self.now, self.replica()
        seen: Seen | None = None
        try:
            query = {"resourceVersion": "0"} if cached else {}
            answer, _ = await self.ask(replica, "GET", f"{COLLECTION}/{name}", query)
            seen = seen_of(answer)
        except Refused as error:
            if error.code != 404:
                return
        self.note(Got(begin, self.now, (NAMESPACE, name), seen, replica.name, consistent=not cached))

    async def _list(self, what: int) -> None:
        begin, replica = self.now, self.replica()
        known = [one.version for one in self.history.records if isinstance(one, Listed)]
        query: Kind = {}
        if what == 4:
            query = {"resourceVersion": "0"}
        elif what == 5 and known:
            query = {"resourceVersion": str(self.random.choice(known)), "resourceVersionMatch": "Exact"}
        answer, headers = await self.ask(replica, "GET", COLLECTION, query)
        items = tuple(seen_of(one) for one in answer["items"])
        self.note(Listed(
            begin, self.now, int(answer["metadata"]["resourceVersion"]), items, replica.name,
            consistent=not query, follows=False, partial="warning" in headers,
        ))  # fmt: skip


class Writer(Client):
    """Writes through the replicas by optimistic locking, reads what it wrote, and counts on a shared object."""

    def __init__(self, name: str, replicas: list[Replica], seed: int) -> None:
        super().__init__(name, "all", replicas, seed)
        self.won: list[int] = []
        self.unknown = 0
        self._count = 0

    def _stamp(self) -> str:
        self._count += 1
        return f"{self.history.client}.{self._count}"

    async def once(self, name: str, what: int) -> None:
        known = next((
            one.seen for one in reversed(self.history.records)
            if isinstance(one, Got | Wrote) and one.key == (NAMESPACE, name)
        ), None)  # fmt: skip
        try:
            if known is None and what == 0:
                await self._write("create", name, None)
            elif known is not None and what < 4:
                await self._write(("update", "patch", "delete", "update")[what], name, known)
                if what == 2:
                    await self._list()
            await self._get(name)
        except Broken:
            return

    async def _get(self, name: str) -> dict[str, Any] | None:
        begin, replica = self.now, self.replica()
        answer: dict[str, Any] | None = None
        try:
            answer, _ = await self.ask(replica, "GET", f"{COLLECTION}/{name}")
        except Refused as error:
            if error.code != 404:
                return None
        seen = seen_of(answer) if answer is not None else None
        self.note(Got(begin, self.now, (NAMESPACE, name), seen, replica.name))
        return answer

    async def _list(self) -> None:
        """What was deleted a get cannot show: its member has it no more. A list could."""
        begin, replica = self.now, self.replica()
        try:
            answer, headers = await self.ask(replica, "GET", COLLECTION)
        except Refused:
            return
        items = tuple(seen_of(one) for one in answer["items"])
        version, partial = int(answer["metadata"]["resourceVersion"]), "warning" in headers
        self.note(Listed(begin, self.now, version, items, replica.name, follows=False, partial=partial))

    async def _write(self, verb: str, name: str, known: Seen | None) -> None:
        begin, replica = self.now, self.replica()
        seen, code = None, 200
        try:
            answer = await self._send(replica, verb, name, known)
            if verb != "delete" and "resourceVersion" in answer["metadata"]:  # what is gone by then has none
                seen = seen_of(answer)
        except Refused as error:
            code = 0 if error.code >= 500 else error.code
        except Broken:
            code = 0
        uid = known.uid if known else ""
        self.note(Wrote(begin, self.now, verb, (NAMESPACE, name), code, seen, uid, replica.name))

    async def _send(self, replica: Replica, verb: str, name: str, known: Seen | None) -> dict[str, Any]:
        path, stamp, group = f"{COLLECTION}/{name}", self._stamp(), self.random.choice(GROUPS)
        if verb == "create":
            return (await self.ask(replica, "POST", COLLECTION, body=pod(name, stamp, group)))[0]
        assert known is not None
        if verb == "delete":
            body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": known.uid}}
            return (await self.ask(replica, "DELETE", path, body=body))[0]
        if verb == "update":
            obj = pod(name, stamp, group)
            obj["metadata"] |= {"resourceVersion": str(known.fleet), "uid": known.uid}
            return (await self.ask(replica, "PUT", path, body=obj))[0]
        patch = {"metadata": {"annotations": {STAMP: stamp}, "labels": {"group": group}}}
        return (await self.ask(replica, "PATCH", path, body=patch, kind=MERGE))[0]

    async def count(self, name: str) -> None:
        """Increment by optimistic locking: read, add one, write under the version that was read."""
        try:
            obj = await self._get(name)
        except Broken:
            return
        if obj is None:
            return
        metadata = obj["metadata"]
        value = int(metadata["annotations"].get(COUNT, "0")) + 1
        metadata["annotations"] |= {COUNT: str(value), STAMP: self._stamp()}
        begin = self.now
        try:
            replica = self.replica()
            answer, _ = await self.ask(replica, "PUT", f"{COLLECTION}/{name}", body=obj)
        except Refused as error:
            if error.code >= 500:
                self.unknown += 1
            return
        except Broken:
            self.unknown += 1
            return
        self.won.append(value)
        self.note(Wrote(begin, self.now, "update", (NAMESPACE, name), 200, seen_of(answer), "", replica.name))
