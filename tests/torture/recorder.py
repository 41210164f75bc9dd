"""Records what a member does, straight at its API server."""

from __future__ import annotations

import asyncio

from tests.proof.history import Key, MemberRecord, MemberState
from tests.torture.wire import FAILURES, IGNORED, PATH, STAMP, Obj, Refused, Server


class Recorder:
    """One member; `run` is its task. `states` is what it holds now, with labels."""

    def __init__(self, cluster: str, server: Server) -> None:
        self.record = MemberRecord(cluster)
        self.states: dict[Key, tuple[MemberState, dict[str, str]]] = {}
        self._server = server
        self._version = ""
        self.synced = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                query = {"resourceVersion": self._version, "allowWatchBookmarks": "true"}
                async for frame in self._server.watch(PATH, query, silence=120):
                    self._take(frame)
            except Refused as error:
                if error.code == 410:
                    self._version = ""
                await asyncio.sleep(0.3)
            except FAILURES:
                await asyncio.sleep(0.3)

    async def settled(self) -> dict[Key, tuple[MemberState, dict[str, str]]]:
        """The member's own list, now."""
        answer = await self._server.request("GET", PATH, timeout=30)
        found = [_state(one) for one in answer["items"] if one["metadata"]["name"] != IGNORED]
        return {(one.namespace, one.name): (one, labels) for one, labels in found}

    async def _list(self) -> None:
        answer = await self._server.request("GET", PATH, timeout=30)
        first = not self.synced.is_set()
        version = int(answer["metadata"]["resourceVersion"])
        there = {}
        for obj in answer["items"]:
            if obj["metadata"]["name"] == IGNORED:
                continue
            state, labels = _state(obj)
            there[state.namespace, state.name] = state, labels
        for key, (old, _) in self.states.items():
            if key not in there or there[key][0].uid != old.uid:
                gone = MemberState(version, *key, old.uid, old.stamp, deleted=True)
                self.record.states.append(gone)
        for key, (state, _) in there.items():
            if key not in self.states or self.states[key][0] != state:
                self.record.states.append(state)
        self.states = there
        self.record.disturbed |= not first
        self._version = answer["metadata"]["resourceVersion"]
        self.synced.set()

    def _take(self, frame: Obj) -> None:
        obj = frame["object"]
        if frame["type"] == "ERROR":
            raise Refused(int(obj.get("code", 500)), str(obj.get("message", "")))
        self._version = obj["metadata"]["resourceVersion"]
        if frame["type"] == "BOOKMARK" or obj["metadata"]["name"] == IGNORED:
            return
        state, labels = _state(obj, deleted=frame["type"] == "DELETED")
        self.record.states.append(state)
        if state.deleted:
            self.states.pop((state.namespace, state.name), None)
        else:
            self.states[state.namespace, state.name] = state, labels


def _state(obj: Obj, *, deleted: bool = False) -> tuple[MemberState, dict[str, str]]:
    metadata = obj["metadata"]
    stamp = (metadata.get("annotations") or {}).get(STAMP, "")
    return (
        MemberState(
            int(metadata["resourceVersion"]), metadata["namespace"], metadata["name"], metadata["uid"], stamp, deleted
        ),
        metadata.get("labels") or {},
    )
