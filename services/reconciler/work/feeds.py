"""Informers by (cluster, resource, selectors), shared by all controllers of a replica.

Metadata only, unless somebody needs whole objects; managed fields are never kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from services.common.kube.client import KubeClient
from services.common.kube.informer import Informer
from services.common.kube.resource import Resource
from services.common.tasks import Tasks
from services.reconciler.work.predicates import ADDED

log = logging.getLogger(__name__)

Obj = dict[str, Any]
Listener = Callable[[str, Obj, Obj | None, bool], None]
"""(ADDED|MODIFIED|DELETED, object, state before, whether a first list brought it). Must not block."""


class FeedKey(NamedTuple):
    """What makes two sources of one cluster the same feed."""

    cluster: str
    resource: Resource
    namespace: str
    label_selector: str
    field_selector: str
    whole: bool


def slim(obj: Obj) -> Obj:
    """Without what nobody reads and what is often the larger half."""
    obj["metadata"].pop("managedFields", None)
    return obj


class Feed:
    """One informer and who listens. Listeners that come later are told what is there."""

    def __init__(self, client: KubeClient, key: FeedKey, tasks: Tasks) -> None:
        self.key = key
        self._listeners: list[Listener] = []
        self.informer = Informer(
            client, key.resource, namespace=key.namespace or None, label_selector=key.label_selector,
            field_selector=key.field_selector, metadata_only=not key.whole, handler=self._handle, transform=slim,
        )  # fmt: skip
        self._task = tasks.spawn(self.informer.run(), f"feed {key.cluster or 'host'} {key.resource.key}", root=True)

    @property
    def synced(self) -> bool:
        """Whether it was read completely once."""
        return self.informer.synced.is_set()

    def add(self, listener: Listener) -> None:
        """Listen, from the present state on."""
        self._listeners.append(listener)
        self.replay(listener)

    def replay(self, listener: Listener) -> None:
        """Tell one listener what is there, as a first list would."""
        for obj in list(self.informer.store.values()):
            listener(ADDED, obj, None, True)

    def remove(self, listener: Listener) -> bool:
        """Listen no more; True when nobody is left."""
        self._listeners.remove(listener)
        return not self._listeners

    def stop(self) -> None:
        """End the informer."""
        self._task.cancel()

    def _handle(self, event: str, obj: Obj, old: Obj | None) -> None:
        initial = not self.synced
        for listener in list(self._listeners):
            try:
                listener(event, obj, old, initial)
            except Exception:
                # One controller's trouble with an object is none of the others'.
                log.exception("%s: a listener failed", self.key)


class Subscription:
    """One listener's hold on a feed; `close` once."""

    def __init__(self, feeds: Feeds, feed: Feed, listener: Listener) -> None:
        self._feeds, self.feed, self.listener = feeds, feed, listener

    def replay(self) -> None:
        """Tell the listener again what is there."""
        self.feed.replay(self.listener)

    def close(self) -> None:
        """Listen no more; the feed ends with its last listener."""
        self._feeds.drop(self)


class Feeds:
    """All feeds of a replica. Their tasks are the owner's."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._feeds: dict[FeedKey, Feed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def subscribe(self, client: KubeClient, key: FeedKey, listener: Listener) -> Subscription:
        """Follow a feed, starting it where nobody did."""
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(client, key, self._tasks)
        feed.add(listener)
        return Subscription(self, feed, listener)

    def drop(self, subscription: Subscription) -> None:
        """See Subscription.close."""
        feed = subscription.feed
        if feed.remove(subscription.listener):
            feed.stop()
            if self._feeds.get(feed.key) is feed:
                del self._feeds[feed.key]
