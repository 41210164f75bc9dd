"""The load: objects written straight on the members, through the fronts, and counters that several clients share."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.proof.history import Got, History, Listed, Seen, Wrote
from tests.torture.wire import (
    FAILURES,
    IGNORED,
    NAMESPACE,
    PATH,
    STAMP,
    VALUE,
    WARNED,
    Obj,
    Refused,
    Server,
    ledger,
    seen_of,
)

MERGE = "application/merge-patch+json"
KEPT = 25
"""Names that one writer uses."""
GROUPS = ("a", "b", "c")


@dataclass(slots=True)
class Load:
    """What all writers have done."""

    direct: int = 0
    front: int = 0
    refused: int = 0
    unknown: int = 0
    codes: dict[int, int] = field(default_factory=dict)

    @property
    def writes(self) -> int:
        return self.direct + self.front


class MemberWriter:
    """Writes on one member, `rate` a second."""

    def __init__(self, cluster: str, server: Server, load: Load, rate: float, seed: int) -> None:
        self._cluster, self._server, self._load, self._rate = cluster, server, load, rate
        self._random = random.Random(seed)
        self._count = 0

    async def run(self) -> None:
        """Write until cancelled; what fails is tried as something else the next time."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + 1 / self._rate, loop.time() - 1)
            await asyncio.sleep(max(due - loop.time(), 0))
            try:
                await self._once()
                self._load.direct += 1
            except Refused as error:
                if error.code not in (404, 409):
                    await asyncio.sleep(0.2)
            except FAILURES:
                await asyncio.sleep(0.2)

    async def _once(self) -> None:
        self._count += 1
        name = f"direct-{self._cluster}-{self._random.randrange(KEPT)}"
        stamp, group = f"{self._cluster}.{self._count}", self._random.choice(GROUPS)
        dice = self._random.random()
        if dice < 0.12:
            await self._server.request("DELETE", f"{PATH}/{name}")
            return
        patch: Obj = {"metadata": {"annotations": {STAMP: stamp}, "labels": {"group": group}}}
        try:
            await self._server.request("PATCH", f"{PATH}/{name}", patch, kind=MERGE)
        except Refused as error:
            if error.code != 404:
                raise
            await self._server.request("POST", PATH, ledger(name, stamp, group))


class FrontWriter:
    """Writes and reads its own objects through the fronts, and records both."""

    def __init__(self, name: str, fronts: Sequence[Server], load: Load, rate: float, seed: int) -> None:
        self.history = History(name, "all")
        self._fronts, self._load, self._rate = fronts, load, rate
        self._random = random.Random(seed)
        self._name = name
        self._count = 0
        self._mine: dict[str, Seen | None] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + 1 / self._rate, loop.time() - 1)
            await asyncio.sleep(max(due - loop.time(), 0))
            await self._once()

    async def _once(self) -> None:
        self._count += 1
        dice = self._random.random()
        name = f"{self._name}-{self._random.randrange(KEPT)}"
        if dice < 0.15:
            await self._get(name)
        elif dice < 0.18:
            await self._list()
        elif name not in self._mine:
            await self._write("create", name)
        elif dice < 0.30:
            await self._write("delete", name)
        elif dice < 0.60:
            await self._write("update", name)
        else:
            await self._write("patch", name)

    def _front(self) -> Server:
        return self._random.choice(self._fronts)

    async def _get(self, name: str) -> None:
        begin, front = time.monotonic(), self._front()
        try:
            seen = seen_of(await front.request("GET", f"{PATH}/{name}"))
        except Refused as error:
            if error.code != 404:
                return
            seen = None
        except FAILURES:
            return
        self.history.records.append(Got(begin, time.monotonic(), (NAMESPACE, name), seen, front.name))
        if seen is None:
            self._mine.pop(name, None)
        else:
            self._mine[name] = seen

    async def _list(self) -> None:
        begin, front = time.monotonic(), self._front()
        old = self._random.random() < 0.3
        try:
            answer = await front.request("GET", PATH, query={"resourceVersion": "0"} if old else None, timeout=15)
        except (Refused, *FAILURES):
            return
        items = tuple(seen_of(one) for one in answer["items"] if one["metadata"]["name"] != IGNORED)
        version = int(answer["metadata"]["resourceVersion"])
        self.history.records.append(
            Listed(begin, time.monotonic(), version, items, front.name, consistent=not old, follows=False,
                   partial=WARNED in answer)
        )

    async def _write(self, verb: str, name: str) -> None:
        begin, front = time.monotonic(), self._front()
        known = self._mine.get(name)
        seen: Seen | None = None
        try:
            answer = await self._send(front, verb, name, known)
            code = 200
            if verb != "delete":
                seen = self._mine[name] = seen_of(answer)
            else:
                self._mine.pop(name, None)
            self._load.front += 1
        except Refused as error:
            code = error.code
            self._load.codes[code] = self._load.codes.get(code, 0) + 1
            if code >= 500:
                self._load.unknown += 1
                code = 0
            else:
                self._load.refused += 1
            self._mine.pop(name, None) if code == 404 else self._mine.setdefault(name, None)
        except FAILURES:
            code = 0
            self._load.unknown += 1
            self._mine.setdefault(name, None)
        record = Wrote(
            begin, time.monotonic(), verb, (NAMESPACE, name), code, seen, known.uid if known else "", front.name
        )
        self.history.records.append(record)
        if code in (0, 409):
            await self._get(name)

    async def _send(self, front: Server, verb: str, name: str, known: Seen | None) -> Obj:
        stamp, group = f"{self._name}.{self._count}", self._random.choice(GROUPS)
        if verb == "create":
            return await front.request("POST", PATH, ledger(name, stamp, group))
        if verb == "delete":
            body: Obj = {"apiVersion": "v1", "kind": "DeleteOptions"}
            if known is not None:
                body["preconditions"] = {"uid": known.uid}
            return await front.request("DELETE", f"{PATH}/{name}", body)
        if verb == "update" and known is not None:
            obj = ledger(name, stamp, group)
            obj["metadata"] |= {"resourceVersion": str(known.fleet), "uid": known.uid}
            return await front.request("PUT", f"{PATH}/{name}", obj)
        patch = {"metadata": {"annotations": {STAMP: stamp}, "labels": {"group": group}}}
        return await front.request("PATCH", f"{PATH}/{name}", patch, kind=MERGE)


class CounterClient:
    """Increments one shared object by optimistic locking."""

    def __init__(self, name: str, counter: str, fronts: Sequence[Server], load: Load, rate: float, seed: int) -> None:
        self.name, self.counter = name, counter
        self.won: list[int] = []
        self.unknown = 0
        self.conflicts = 0
        self._fronts, self._load, self._rate = fronts, load, rate
        self._random = random.Random(seed)
        self._count = 0

    async def run(self) -> None:
        """Increment until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(0, 2 / self._rate))
            front = self._random.choice(self._fronts)
            try:
                obj = await front.request("GET", f"{PATH}/{self.counter}")
            except (Refused, *FAILURES):
                continue
            await self._increment(front, obj)

    async def _increment(self, front: Server, obj: Obj) -> None:
        self._count += 1
        annotations = obj["metadata"]["annotations"]
        value = int(annotations[VALUE]) + 1
        annotations |= {VALUE: str(value), STAMP: f"{self.name}.{self._count}"}
        # Counted before it is sent: a run that ends meanwhile does not know the outcome either.
        self.unknown += 1
        try:
            await front.request("PUT", f"{PATH}/{self.counter}", obj)
        except Refused as error:
            if error.code < 500:
                self.unknown -= 1
                self.conflicts += 1
        except FAILURES:
            return
        else:
            self.unknown -= 1
            self.won.append(value)
            self._load.front += 1
