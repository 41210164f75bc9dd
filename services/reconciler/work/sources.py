"""A controller's sources in one cluster: subscriptions to feeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from services.reconciler.work.feeds import FeedKey, Feeds, Subscription
from services.reconciler.work.mapping import HOST
from services.reconciler.work.parts import Part
from services.reconciler.work.spec import SourceSpec, takes_host, takes_members

Obj = dict[str, Any]
Event = Callable[[SourceSpec, str, str, Obj, Obj | None, bool], None]
"""(source, cluster, type, object, state before, whether a first list brought it)."""


class Sources:
    """Keeps parts subscribed to what the registration names."""

    def __init__(self, feeds: Feeds, event: Event, forget: Callable[[str, str], None]) -> None:
        self._feeds = feeds
        self._event = event
        self._forget = forget
        """Told (cluster, ident) of each source that is followed no more."""

    def sync(self, part: Part, wanted: tuple[SourceSpec, ...], *, anew: bool = False) -> None:
        """Subscribe to what is new (to all of it with `anew`), leave what is not wanted."""
        cluster = part.engaged.cluster
        here = [source for source in wanted if _is_for(source, cluster)]
        gone = [source for source in part.feeds if anew or source not in here]
        held = {source: part.feeds.pop(source) for source in gone}
        for source in gone:
            self._forget(cluster, source.ident)
        for source in here:
            if source not in part.feeds:
                # Filled step by step: first events may come from inside of `subscribe`.
                subscriptions = part.feeds[source] = []
                for namespace in source.namespaces or ("",):
                    subscriptions.append(self._subscribe(part, source, namespace))
        # Last, so that a feed that is still wanted does not stop in between.
        for subscriptions in held.values():
            for subscription in subscriptions:
                subscription.close()

    def _subscribe(self, part: Part, source: SourceSpec, namespace: str) -> Subscription:
        cluster = part.engaged.cluster
        key = FeedKey(
            cluster, source.resource, namespace, source.label_selector, source.field_selector, source.whole
        )
        return self._feeds.subscribe(part.engaged.client, key, partial(self._event, source, cluster))


def _is_for(source: SourceSpec, cluster: str) -> bool:
    if source.is_fleet or source.is_channel:
        return False
    return takes_host(source.scope) if cluster == HOST else takes_members(source.scope)
