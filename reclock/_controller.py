"""`@controller`: what is watched, where, and the handler that is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from reclock._durations import duration
from reclock._request import Request, SyncRequest
from reclock._resource import Resource
from reclock._results import Result
from reclock._sources import (
    NO_RESOURCE,
    Channel,
    For,
    Index,
    Mapper,
    On,
    Owns,
    Predicates,
    Source,
    Target,
    Watch,
    encode,
    encode_index,
)
from reclock.reconciler.v1 import reconciler_pb2 as pb

AsyncHandler: TypeAlias = Callable[[Request], Awaitable[Result]]
PlainHandler: TypeAlias = Callable[[SyncRequest], Result]
Teller: TypeAlias = Callable[[str], Iterable[Target]]
"""Says all that is due in a cluster; runs in the event loop and must not block."""

PROTOCOL = 1
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


class Mode(Enum):
    """What the queue looks at first."""

    FAIR = pb.MODE_FAIR
    """The cluster's turn; priority counts inside of a cluster."""
    PRIORITY_FIRST = pb.MODE_PRIORITY_FIRST
    """Priority; clusters share fairly within one priority."""


@dataclass(frozen=True, kw_only=True)
class Controller:
    """Made by `@controller`. Calling it calls the handler, as tests of one do."""

    name: str
    handler: AsyncHandler | PlainHandler
    sources: tuple[Source, ...]
    where: str
    on: On
    max_in_flight: int
    weights: Mapping[str, float]
    caps: Mapping[str, int]
    mode: Mode
    indexes: tuple[Index, ...]
    backoff_base: float | None
    backoff_max: float | None
    tells: Teller | None = None
    sole: bool = False
    leaving: bool = False

    def __call__(self, request: Any) -> Any:
        return self.handler(request)

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function; others run in threads."""
        return inspect.iscoroutinefunction(self.handler)

    def resource(self, source: str) -> Resource:
        """The resource of requests of a source."""
        named = [one for one in self.sources if isinstance(one, For)]
        if any(isinstance(one, Channel) and one.name == source for one in self.sources) or not named:
            return NO_RESOURCE
        chosen = next((one for one in named if one.name == source), named[0])
        return Resource.of(chosen.resource)

    def mapper(self, source: str) -> Mapper | None:
        """The function that says which requests objects of a source make; by its name or its place."""
        for place, one in enumerate(self.sources):
            if source in (one.name, str(place)) and isinstance(one, Watch) and callable(one.by):
                return one.by
        return None

    def register(self, worker: str) -> pb.Register:
        """The first message of a worker of that name."""
        made = pb.Register(
            controller=self.name, sources=[encode(source) for source in self.sources],
            cluster_selector=self.where, max_in_flight=self.max_in_flight, scope=self.on.value,
            weights=dict(self.weights), caps=dict(self.caps), mode=self.mode.value, worker=worker,
            protocol_version=PROTOCOL, indexes=[encode_index(index) for index in self.indexes],
            leaving_clusters=self.leaving,
        )  # fmt: skip
        if self.backoff_base is not None:
            made.backoff_base.CopyFrom(duration(self.backoff_base))
        if self.backoff_max is not None:
            made.backoff_max.CopyFrom(duration(self.backoff_max))
        return made


def controller(
    *,
    for_: str | Resource | For | Channel | Sequence[For | Channel],
    name: str = "",
    owns: Sequence[str | Resource | Owns] = (),
    watches: Sequence[Watch] = (),
    where: str = "",
    selector: str = "",
    predicates: Predicates | None = None,
    on: On = On.MEMBERS,
    max_in_flight: int = 10,
    weights: Mapping[str, float] | None = None,
    caps: Mapping[str, int] | None = None,
    mode: Mode = Mode.FAIR,
    indexes: Sequence[Index] = (),
    backoff_base: float | None = None,
    backoff_max: float | None = None,
    tells: Teller | None = None,
    sole: bool = False,
    leaving: bool = False,
) -> Callable[[AsyncHandler | PlainHandler], Controller]:
    """Make a controller of a handler: it is called for each object of `for_`, in every cluster, after each change.

    An `async def` handler gets a `Request`, a plain one a `SyncRequest` in a thread of its own. What it returns or
    raises says what is next: see `Result`.

    for_: the objects ("v1/configmaps"), or `For` with more settings, or a `Channel`; several need a `name` each.
    name: of the controller; the function's when empty. Workers of one name share its requests.
    owns: objects whose controller owner is a request. watches: others, see `Watch`.
    where: label selector on clusters; all when empty. on: members (default), the host, or both.
    selector, predicates: label selector and events of `for_`, for short.
    max_in_flight: requests that one worker handles at once, 1 to 1000.
    weights, caps: share and most requests at once of a cluster, by name.
    indexes: for `Request.indexed`. backoff_base, backoff_max: delays after errors, in seconds (0.005, 1000).
    tells: with a `Channel`, all that is due in a cluster (of each `Channel`): asked when its queue begins anew.
    sole: this worker vouches that no other of its controller runs: elected by means of its own, it waits for no leases.
    leaving: clusters that are being emptied of what Reclock made there are its business until they have gone.

    Raises ValueError for what could never be registered.
    """
    sources = _sources(for_, owns, watches, selector, predicates)
    if not 1 <= max_in_flight <= 1000:
        raise ValueError(f"max_in_flight={max_in_flight}: allowed is 1 to 1000")
    for index in indexes:
        encode_index(index)

    def make(handler: AsyncHandler | PlainHandler) -> Controller:
        chosen = name or getattr(handler, "__name__", "").strip("_").replace("_", "-").lower()
        if not _NAME.fullmatch(chosen):
            raise ValueError(f"controller name {chosen!r}: 1 to 63 of a-z, 0-9, '-', '.'; give one by name=")
        return Controller(
            name=chosen, handler=handler, sources=sources, where=where, on=on, max_in_flight=max_in_flight,
            weights=dict(weights or {}), caps=dict(caps or {}), mode=mode, indexes=tuple(indexes),
            backoff_base=backoff_base, backoff_max=backoff_max, tells=tells, sole=sole, leaving=leaving,
        )  # fmt: skip

    return make


def _sources(
    for_: str | Resource | For | Channel | Sequence[For | Channel],
    owns: Sequence[str | Resource | Owns],
    watches: Sequence[Watch],
    selector: str,
    predicates: Predicates | None,
) -> tuple[Source, ...]:
    if isinstance(for_, str | Resource):
        made: list[Source] = [For(for_, labels=selector, predicates=predicates or Predicates())]
    elif selector or predicates:
        raise ValueError("give selector and predicates inside of For(…)")
    else:
        made = [for_] if isinstance(for_, For | Channel) else list(for_)
    if not made:
        raise ValueError("for_ is empty: a controller needs objects")
    made += [Owns(one) if isinstance(one, str | Resource) else one for one in owns]
    made += watches
    for source in made:
        encode(source)
    return tuple(made)
