"""Lists and watches of one resource on one cluster, metadata only, as markers."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from _fastpath.marker import DIFF, EVENT, Marker
from _fastpath.splice import FrameSplitter, ListScanner, Meta, SpliceError, scan, scan_frame
from services.aggregator.clock.tap import Tap
from services.aggregator.clock.work import Bookmark
from services.common.errors import MemberUnreachable, StatusError, decode_status
from services.common.kube.client import MAX_OBJECT, KubeClient
from services.common.kube.resource import Resource
from services.common.kube.served import lacks_type, other_version
from services.common.pace import Pace

log = logging.getLogger(__name__)

LIST_ACCEPT = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
WATCH_ACCEPT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
WHOLE_ACCEPT = "application/json"
PAGE = 1000
LIST_TIMEOUT = 120.0
LIST_SILENCE = 30.0
WATCH_SECONDS = (420, 600)
UNMARKED_SECONDS = (100, 140)
"""The same for what gets no bookmarks: the cluster ends the watch, in order, before its silence could mean anything."""
EARLY = 5.0
WATCH_SILENCE = 150.0
"""Clusters send bookmarks about every minute: a watch that is silent for longer is dead."""
GATHER = 0.003
"""Seconds between two reads of a watch while events come fast."""
ORIGIN = "reclock.dev/origin"


@dataclass(slots=True)
class Listing:
    """A whole list at one member version."""

    version: int
    items: list[Marker] = field(default_factory=list)


class NoKubernetes(MemberUnreachable):
    """What the cluster sends is not what Kubernetes sends: a proxy's page, half of an answer, versions that are none."""


class WatchEnded(Exception):
    """The cluster ended the watch in order, when its time was over."""


class Expired(Exception):
    """410: the version is older than what the cluster keeps."""


def number(text: str, what: str) -> int:
    """A member version; NoKubernetes for what Kubernetes never sends."""
    if not (text.isascii() and text.isdecimal()):
        raise NoKubernetes(f"{what}: resourceVersion {text[:40]!r} is no integer")
    return int(text)


class MetadataClient:
    """One resource of one cluster. `hide_origin`: objects with this origin label are copies, shown elsewhere."""

    def __init__(self, client: KubeClient, resource: Resource, cluster: str, hide_origin: str = "") -> None:
        self.client, self.resource, self.cluster = client, resource, cluster
        self._version = resource.version
        self.hide_origin = hide_origin
        self._what = f"cluster {cluster!r}: {resource.key}"

    def _marker(self, meta: Meta, incarnation: str, kind: int, deleted: bool = False) -> Marker:
        labels = meta.labels()
        if self.hide_origin and labels.get(ORIGIN) == self.hide_origin:
            deleted = True
        return Marker(
            self.cluster, incarnation, meta.namespace, meta.name, meta.uid, number(meta.version, self._what),
            labels, deleted=deleted, deleting=meta.deleting, kind=kind,
        )  # fmt: skip

    async def version(self) -> int:
        """The cluster's current version of this resource (a consistent read). 404 where it has no such type."""
        listing, _ = await self._page({"limit": 1}, "")
        return listing.version

    def renew(self) -> None:
        """Ask what follows over new connections."""
        self.client.renew()

    @property
    def native(self) -> bool:
        """Is the resource followed in the version that was asked for?"""
        return self.resource.version == self._version

    async def lacks_type(self) -> bool:
        """Does the cluster's own discovery say that it has no such type? A proxy's 404 must not delete anything.

        Where it has it in another version only, that one is followed from now on: metadata is the same in all.
        """
        if not await lacks_type(self.client, self.resource):
            return False
        try:
            other = await other_version(self.client, self.resource)
        except StatusError:
            return False
        if other is None:
            return True
        log.info("%s: followed in version %s", self._what, other.version)
        self.resource = other
        return False

    async def whole(self, incarnation: str, at: int = 0) -> Listing:
        """All objects, now or Exact at a version. Expired where that is not to be had."""
        whole: Listing | None = None
        async for page in self.pages(incarnation, at):
            if whole is None:
                whole = page
            else:
                whole.items += page.items
        assert whole is not None
        return whole

    async def pages(self, incarnation: str, at: int = 0) -> AsyncGenerator[Listing, None]:
        """The same page by page; all are of the first one's version."""
        query: dict[str, str | int] = {"limit": PAGE}
        if at:
            query |= {"resourceVersion": at, "resourceVersionMatch": "Exact"}
        while True:
            page, token = await self._page(query, incarnation)
            yield page
            if not token:
                return
            query = {"limit": PAGE, "continue": token}

    async def _page(self, query: dict[str, str | int], incarnation: str) -> tuple[Listing, str]:
        scanner = ListScanner(b"items", MAX_OBJECT)
        out: list[Marker] = []
        try:
            async with self.client.stream(
                "GET", self.resource.path(), query=query, headers={"Accept": LIST_ACCEPT},
                timeout=LIST_TIMEOUT, sock_read=LIST_SILENCE,
            ) as response:  # fmt: skip
                async for chunk in response.content.iter_any():
                    for item in scanner.feed(chunk):
                        marker = self._marker(scan(item), incarnation, DIFF)
                        if not marker.deleted:
                            out.append(marker)
                scanner.finish()
        except StatusError as error:
            if error.code == 410:
                raise Expired(error.message) from error
            raise
        except SpliceError as error:
            raise NoKubernetes(f"{self._what}: a list that is none: {error}") from error
        except TimeoutError as error:
            raise MemberUnreachable(f"{self._what}: the list did not come in time") from error
        return Listing(number(scanner.list_version, self._what), out), scanner.continue_token

    async def watch(
        self, incarnation: str, version: int, tap: Tap | None = None
    ) -> AsyncGenerator[list[Marker | Bookmark], None]:
        """Yield what happens above `version`, what came together together; an empty list when it is open.

        With a `tap` the watch carries whole objects, which go there before they are yielded.

        Ends only by an error: WatchEnded, Expired, StatusError.
        """
        limit = random.randint(*(WATCH_SECONDS if self.resource.marked else UNMARKED_SECONDS))
        loop = asyncio.get_running_loop()
        begin = loop.time()
        query = {
            "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": str(version),
            "timeoutSeconds": str(limit),
        }  # fmt: skip
        splitter = FrameSplitter(MAX_OBJECT)
        try:
            async with self.client.stream(
                "GET", self.resource.path(), query=query,
                headers={"Accept": WATCH_ACCEPT if tap is None else WHOLE_ACCEPT},
                timeout=limit + 60, sock_read=WATCH_SILENCE,
            ) as response:  # fmt: skip
                if tap is not None:
                    tap.opened(incarnation, version)
                yield []
                pace = Pace(GATHER)
                async for chunk in response.content.iter_any():
                    some = [self._frame(frame, incarnation, tap) for frame in splitter.feed(chunk) if frame.strip()]
                    pace.stepped(len(some))
                    yield some
                    if tap is not None:
                        await tap.room()
                    if (left := pace.left()) > 0:
                        await asyncio.sleep(left)
        except StatusError as error:
            if error.code == 410:
                raise Expired(error.message) from error
            raise
        except SpliceError as error:
            raise NoKubernetes(f"{self._what}: a watch that sends no frames: {error}") from error
        except TimeoutError as error:
            raise MemberUnreachable(f"{self._what}: the watch was silent") from error
        if loop.time() - begin < limit - EARLY:
            # In order or not: a cluster that ends a watch before its time is being restarted.
            raise MemberUnreachable(f"{self._what}: the watch was ended early")
        raise WatchEnded

    def _frame(self, frame: bytes, incarnation: str, tap: Tap | None) -> Marker | Bookmark:
        kind, meta = scan_frame(frame)
        if tap is not None and kind != "ERROR":
            tap.passed(frame, kind, meta, number(meta.version, self._what))
        if kind == "BOOKMARK":
            return Bookmark(number(meta.version, self._what))
        if kind == "ERROR":
            status = decode_status(frame[meta.start : meta.end])
            raise (
                StatusError.from_status(status)
                if status
                else NoKubernetes(f"{self._what}: the watch ended with an error that is no Status")
            )
        return self._marker(meta, incarnation, EVENT, deleted=kind == "DELETED")
