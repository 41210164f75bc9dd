"""A local copy of one resource of one cluster, kept by list and watch, as JSON objects.

The handler sees every object's changes once, in order: a broken watch resumes at the last version seen, and
where that version is gone (410) a new list is compared with the copy, so that what changed meanwhile comes as
ADDED, MODIFIED and DELETED.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec

from services.common.errors import MemberUnreachable, StatusError, cut
from services.common.kube.client import KubeClient
from services.common.kube.resource import Resource
from services.common.kube.served import lacks_type
from services.common.tasks import Backoff

log = logging.getLogger(__name__)

Object = dict[str, Any]
Handler = Callable[[str, Object, Object | None], None]
Key = tuple[str, str]

ABSENT = 60.0
"""Seconds between looks at whether a type that a cluster does not serve has come."""
PAGE = 500
LIST_TIMEOUT = 60.0
WATCH_SECONDS = (240, 480)
"""A watch is asked to end after a random time between these, so that not all are renewed at once."""
SILENCE = 120.0
"""Seconds without a byte after which a watch counts as dead; the apiserver sends a bookmark each minute."""
META = "as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


class Informer:
    """Runs in one task (`run`); `store` may be read at any time, and holds (namespace, name) -> object.

    `handler(type, object, old)` runs in that task and must not block: type is ADDED, MODIFIED or DELETED (the
    object is then the last state known). `synced` is set after the first complete list; `last_error` says why
    it does not follow now ("" when it does). `transform` makes what is kept of an object (its metadata stays).
    `check` is awaited before each list: where it raises StatusError the copy stays as it is.
    `absent_is_empty`: a cluster that says it has no such type has no such objects, and that is all there is to know.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        handler: Handler | None = None,
        transform: Callable[[Object], Object] | None = None,
        absent_is_empty: bool = False,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.client = client
        self.resource = resource
        self.store: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        self.last_error = ""
        self._namespace = namespace
        self._selectors = {"labelSelector": label_selector or None, "fieldSelector": field_selector or None}
        self._handler = handler
        self._transform = transform
        self._absent_is_empty = absent_is_empty
        self._check = check
        self._version = ""
        accept = "application/json"
        self._list_accept = f"{accept};{META.format('List')},{accept}" if metadata_only else accept
        self._watch_accept = f"{accept};{META.format('')},{accept}" if metadata_only else accept
        self._backoff = Backoff(initial=0.2, maximum=10.0)

    def get(self, name: str, namespace: str = "") -> Object | None:
        """Return the object as last seen."""
        return self.store.get((namespace, name))

    async def run(self) -> None:
        """Follow the resource until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._relist()
                await self._watch()
                continue
            except StatusError as error:
                if await self._absent(error):
                    await asyncio.sleep(ABSENT)
                    continue
                hint = self._failed(error)
            await self._backoff.wait(hint)

    async def _absent(self, error: StatusError) -> bool:
        """Take a type that is not served for an empty list, unless there were objects: look again much later."""
        if not self._absent_is_empty or error.code != 404 or self.store or not await lacks_type(self.client, self.resource):
            return False
        if not self.synced.is_set():
            log.info("%s: it does not serve this type", self._what)
        self.last_error = ""
        self.synced.set()
        return True

    def _failed(self, error: StatusError) -> float | None:
        """Note the error; return how long the server asked to wait."""
        if error.code == 410:
            log.info("%s: version %s is gone, listing again", self._what, self._version)
            self._version = ""
            self._note(error.message, quiet=True)
            return None
        self._note(error.message, quiet=False)
        return float(error.retry_after) if error.retry_after else None

    def _note(self, message: str, *, quiet: bool) -> None:
        if not quiet and message != self.last_error:
            log.warning("%s: %s", self._what, message)
        self.last_error = cut(message, 500)

    @property
    def _what(self) -> str:
        return f"{self.client.label}: {self.resource.key}"

    def _path(self) -> str:
        return self.resource.path(self._namespace)

    async def _relist(self) -> None:
        if self._check is not None:
            await self._check()
        items, version = await self._list()
        self._replace(items)
        self._version = version
        self._good()
        self.synced.set()

    def _good(self) -> None:
        if self.last_error:
            log.info("%s: follows again", self._what)
        self.last_error = ""

    async def _list(self) -> tuple[dict[Key, Object], str]:
        """Read all pages; a continue token that has expired starts anew without pages."""
        items: dict[Key, Object] = {}
        token: str | None = None
        limit: int | None = PAGE
        while True:
            query = {**self._selectors, "limit": limit, "continue": token}
            try:
                response = await self.client.request(
                    "GET", self._path(), query=query, headers={"Accept": self._list_accept},
                    timeout=LIST_TIMEOUT,
                )  # fmt: skip
            except StatusError as error:
                if error.code != 410 or token is None:
                    raise
                items, token, limit = {}, None, None
                continue
            page = response.json()
            metadata = self._check_list(page)
            # Objects inside a list do not name their type; everywhere else they do.
            kind = str(page.get("kind", "")).removesuffix("List") or self.resource.kind
            for item in page.get("items") or []:
                item.setdefault("apiVersion", page.get("apiVersion", self.resource.group_version))
                item.setdefault("kind", kind)
                items[_key(item)] = item
            token = metadata.get("continue") or None
            if token is None:
                return items, str(metadata["resourceVersion"])

    def _check_list(self, page: Any) -> dict[str, Any]:
        metadata = page.get("metadata") if isinstance(page, dict) else None
        if not isinstance(metadata, dict) or "resourceVersion" not in metadata:
            raise MemberUnreachable(f"{self._what}: the answer is no list")
        return metadata

    def _replace(self, items: dict[Key, Object]) -> None:
        """Make the store equal to `items`, telling the handler the differences."""
        for key in [key for key in self.store if key not in items]:
            self._emit("DELETED", self.store.pop(key), None)
        for key, item in items.items():
            self._put(key, item)

    def _put(self, key: Key, item: Object) -> None:
        old = self.store.get(key)
        if old is not None and _uid(old) != _uid(item):
            # Deleted and made again while we did not look.
            del self.store[key]
            self._emit("DELETED", old, None)
            old = None
        if old is not None and _version(old) == _version(item):
            return
        if self._transform is not None:
            item = self._transform(item)
        self.store[key] = item
        self._emit("MODIFIED" if old is not None else "ADDED", item, old)

    def _emit(self, kind: str, obj: Object, old: Object | None) -> None:
        if self._handler is None:
            return
        try:
            self._handler(kind, obj, old)
        except Exception:
            # A handler's bug about one object must not hide all others.
            log.exception("%s: the handler failed on %s %s", self._what, kind, _key(obj))

    async def _watch(self) -> None:
        query = {
            **self._selectors, "watch": "true", "allowWatchBookmarks": "true",
            "resourceVersion": self._version, "timeoutSeconds": random.randint(*WATCH_SECONDS),
        }  # fmt: skip
        opened = asyncio.get_running_loop().time()
        async with self.client.stream(
            "GET", self._path(), query=query, headers={"Accept": self._watch_accept}, sock_read=SILENCE
        ) as response:
            self._good()
            async for line in lines(response):
                self._event(line)
                self._backoff.reset()
        if asyncio.get_running_loop().time() - opened < 1.0:
            # A server that ends each watch at once would otherwise be asked without a pause.
            await self._backoff.wait()

    def _event(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line)
            kind, obj = event["type"], event["object"]
            metadata = obj["metadata"]
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
            raise MemberUnreachable(f"{self._what}: the watch sent something that is no event") from None
        if kind == "ERROR":
            raise StatusError.from_status(obj)
        if kind in ("ADDED", "MODIFIED"):
            self._put(_key(obj), obj)
        elif kind == "DELETED":
            if self.store.pop(_key(obj), None) is not None:
                self._emit("DELETED", obj, None)
        elif kind != "BOOKMARK":
            raise MemberUnreachable(f"{self._what}: unknown event type {cut(str(kind), 40)}")
        self._version = str(metadata["resourceVersion"])


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, whatever their length; silence ends it as a broken connection would."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, last = chunk.split(b"\n")
        if whole:
            yield rest + whole[0]
            for line in whole[1:]:
                yield line
            rest = last
        else:
            rest += last


def _key(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _uid(obj: Object) -> Any:
    return obj["metadata"].get("uid")


def _version(obj: Object) -> Any:
    return obj["metadata"].get("resourceVersion")
