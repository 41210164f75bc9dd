"""Who somebody is and what they may, as a cluster judges: TokenReview and SubjectAccessReview.

Whatever goes wrong is 503: a 401 or 403 that answers a review is about us, not about who is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from services.common.errors import StatusError, unavailable
from services.common.kube.client import KubeClient
from services.common.kube.resource import Resource

TIMEOUT = 10.0
TOGETHER = 50
"""Tokens that a cluster is asked about at once: anybody can make up new ones, the others wait their turn."""
_FREE: AbstractAsyncContextManager[None] = nullcontext()
_TOKEN_REVIEW = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
_ACCESS_REVIEW = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)


@dataclass(frozen=True, slots=True)
class User:
    """A user as Kubernetes knows users (`authentication.k8s.io` UserInfo)."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class TokenReviews:
    """Asks whose tokens are; answers are the caller's to keep."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(TOGETHER)

    async def ask(self, host: KubeClient, token: str) -> User | None:
        """Whose token it is; None when `host` does not accept it. StatusError 503."""
        status = await _status(host, _TOKEN_REVIEW, {"token": token}, self._turn)
        user: Mapping[str, Any] = status.get("user") or {}
        if not status.get("authenticated") or not user.get("username"):
            return None
        extra = tuple((key, tuple(values)) for key, values in sorted((user.get("extra") or {}).items()))
        return User(user["username"], tuple(user.get("groups") or ()), user.get("uid", ""), extra)


async def review_access(host: KubeClient, user: User, attributes: Mapping[str, Any]) -> tuple[bool, str]:
    """(whether `host` lets the user, its reason). `attributes`: `resourceAttributes` or `nonResourceAttributes`. StatusError 503."""
    spec: dict[str, Any] = {"user": user.name, "groups": list(user.groups), **attributes}
    if user.uid:
        spec["uid"] = user.uid
    if user.extra:
        spec["extra"] = {key: list(values) for key, values in user.extra}
    status = await _status(host, _ACCESS_REVIEW, spec)
    return bool(status.get("allowed")) and not status.get("denied"), str(status.get("reason") or "")


async def _status(
    host: KubeClient, resource: Resource, spec: Mapping[str, Any], turn: AbstractAsyncContextManager[Any] = _FREE
) -> Mapping[str, Any]:
    """A review's status, asked for within `turn`, for which it waits no longer than for an answer."""
    try:
        async with asyncio.timeout(TIMEOUT), turn:
            answer = await host.create(resource, None, {
                "apiVersion": resource.group_version, "kind": resource.kind, "spec": spec,
            })  # fmt: skip
    except (StatusError, TimeoutError) as error:
        why = error.message if isinstance(error, StatusError) else f"nothing within {TIMEOUT:g} s"
        raise unavailable(f"the host does not answer a {resource.kind}: {why}", retry_after=1) from error
    return answer.get("status") or {}
