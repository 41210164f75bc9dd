"""`Impersonate-*` headers of clients: each thing impersonated is authorised on its own, as Kubernetes does it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import unquote

from multidict import CIMultiDictProxy

from services.aggregator.front.authz import Attributes, Authorizer
from services.aggregator.front.identity import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED
from services.common.errors import StatusError
from services.common.kube.reviews import User

_EXTRA = "impersonate-extra-"
_SERVICE_ACCOUNT = "system:serviceaccount:"
_AUTHENTICATION = "authentication.k8s.io"


def wanted(headers: Mapping[str, str]) -> bool:
    """Whether a request impersonates (or tries to)."""
    return any(key[:12].lower() == "impersonate-" for key in headers)


async def impersonate(user: User, headers: CIMultiDictProxy[str], authorizer: Authorizer) -> User:
    """Return whom `user` acts as; raises 403 for what is not allowed, 400 for what makes no sense."""
    name = headers.get("Impersonate-User", "")
    groups = tuple(headers.getall("Impersonate-Group", ()))
    uid = headers.get("Impersonate-Uid", "")
    extra = _extra(headers)
    if not name:
        if groups or uid or extra:
            raise StatusError(
                400, "BadRequest", "requested groups, uid or extra to impersonate without impersonating a user"
            )
        return user
    if not all(map(_is_text, (name, uid, *groups, *(one for key, values in extra for one in (key, *values))))):
        raise StatusError(400, "BadRequest", "a name to impersonate is no UTF-8")
    checks, groups_of_name = _of_name(name)
    checks += [Attributes("impersonate", resource="groups", version="v1", name=group) for group in groups]
    checks += [
        Attributes("impersonate", group=_AUTHENTICATION, version="v1", resource="userextras", subresource=key, name=value)
        for key, values in extra
        for value in values
    ]
    if uid:
        checks.append(Attributes("impersonate", group=_AUTHENTICATION, version="v1", resource="uids", name=uid))
    await asyncio.gather(*(authorizer.require(user, check) for check in checks))
    return User(name, _complete(name, groups or groups_of_name), uid, extra)


def _is_text(value: str) -> bool:
    """Whether the header was UTF-8: other bytes stand as surrogates, which no access review can carry."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _of_name(name: str) -> tuple[list[Attributes], tuple[str, ...]]:
    """What to check for a user name, and the groups that come with it when none are asked for."""
    if name.startswith(_SERVICE_ACCOUNT) and name.count(":") == 3:
        namespace, account = name.split(":")[2:]
        if namespace and account:
            check = Attributes("impersonate", resource="serviceaccounts", version="v1", namespace=namespace, name=account)
            return [check], ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return [Attributes("impersonate", resource="users", version="v1", name=name)], ()


def _extra(headers: CIMultiDictProxy[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for key, value in headers.items():
        lowered = key.lower()
        if lowered.startswith(_EXTRA):
            found.setdefault(unquote(lowered[len(_EXTRA) :]), []).append(value)
    return tuple((key, tuple(values)) for key, values in sorted(found.items()))


def _complete(name: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    if name == ANONYMOUS.name:
        return groups if UNAUTHENTICATED in groups else (*groups, UNAUTHENTICATED)
    if AUTHENTICATED in groups or UNAUTHENTICATED in groups:
        return groups
    return (*groups, AUTHENTICATED)
