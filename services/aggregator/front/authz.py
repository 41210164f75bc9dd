"""Authorisation: the host is asked by SubjectAccessReview; answers are kept for some seconds."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import Counter

from services.aggregator.front.errors import forbidden_message
from services.aggregator.front.identity import MASTERS
from services.aggregator.types import RequestInfo
from services.common.cache import LoadingCache
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.reviews import User, review_access

ALLOWED_SECONDS = 8.0
DENIED_SECONDS = 1.5
LONGEST_KEPT = 2048
"""Characters of what is asked for up to which an answer is kept: paths may have 64 KiB, and thousands are kept."""

REVIEWS = Counter(
    "reclock_aggregator_access_reviews_total", "SubjectAccessReviews asked of the host", ["allowed"]
)


class Attributes(NamedTuple):
    """What is to be done, as an access review names it; `path` alone for non-resource requests."""

    verb: str
    path: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class Decision(NamedTuple):
    allowed: bool
    reason: str


_MASTER = Decision(True, "")


def attributes_of(info: RequestInfo) -> Attributes:
    """What a request wants to do."""
    if not info.is_resource:
        return Attributes(info.verb, info.path)
    return Attributes(
        info.verb, "", info.group, info.version, info.resource, info.subresource, info.namespace, info.name
    )


def forbidden_error(user: User, what: Attributes, reason: str = "") -> StatusError:
    """403 as Kubernetes words it."""
    resource = f"{what.resource}/{what.subresource}" if what.subresource else what.resource
    message = forbidden_message(
        what.verb, user=user.name, path=what.path, resource=resource, group=what.group, namespace=what.namespace
    )
    if reason:
        message = f"{message}: {reason}"
    if not what.resource:
        return StatusError(403, "Forbidden", f"forbidden: {message}", details={})
    label = f"{what.resource}.{what.group}" if what.group else what.resource
    named = f'{label} "{what.name}"' if what.name else label
    details = {"name": what.name, "group": what.group, "kind": what.resource}
    return StatusError(
        403, "Forbidden", f"{named} is forbidden: {message}", details={k: v for k, v in details.items() if v}
    )


class Authorizer:
    """Decides by the host's RBAC. Members of system:masters may do everything, as in Kubernetes."""

    def __init__(self, host: KubeClient) -> None:
        self._host = host
        self._cache: LoadingCache[tuple[User, Attributes], Decision] = LoadingCache()

    async def require(self, user: User, what: Attributes) -> None:
        """Raise 403 when `user` may not do `what`; 503 when the host cannot be asked."""
        decision = await self.decide(user, what)
        if not decision.allowed:
            raise forbidden_error(user, what, decision.reason)

    async def decide(self, user: User, what: Attributes) -> Decision:
        """Return the host's decision."""
        if MASTERS in user.groups:
            return _MASTER
        if sum(map(len, what)) > LONGEST_KEPT:
            return (await self._ask(user, what))[0]
        key = (user, what)
        return self._cache.peek(key) or await self._cache.get(key, lambda: self._ask(user, what))

    async def _ask(self, user: User, what: Attributes) -> tuple[Decision, float]:
        allowed, reason = await review_access(self._host, user, _attributes(what))
        REVIEWS.labels(str(allowed).lower()).inc()
        return Decision(allowed, reason), ALLOWED_SECONDS if allowed else DENIED_SECONDS


def _attributes(what: Attributes) -> dict[str, dict[str, str]]:
    if not what.resource:
        return {"nonResourceAttributes": {"path": what.path, "verb": what.verb}}
    given = {key: value for key, value in what._asdict().items() if value and key != "path"}
    return {"resourceAttributes": given}
