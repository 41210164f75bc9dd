"""Authentication: a front proxy's headers (with its certificate only), client certificates, bearer tokens."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

from aiohttp import web

from services.aggregator.front.certificates import Peer
from services.aggregator.front.identity import AUTHENTICATED
from services.aggregator.front.tokens import Tokens, token_of
from services.common.errors import unauthorized
from services.common.kube.client import KubeClient
from services.common.kube.reviews import User

_REMOTE_EXTRA = "x-remote-extra-"


class Authenticator:
    """Says who sends a request."""

    def __init__(self, host: KubeClient) -> None:
        self._tokens = Tokens(host)

    async def user(self, request: web.BaseRequest, peer: Peer | None) -> User | None:
        """Return the user, None without any credentials; raises 401 for credentials that do not hold."""
        if peer is not None:
            if not peer.valid():
                raise unauthorized("the client certificate has expired")
            if peer.user is not None:
                return peer.user
            remote = _remote_user(request)
            if remote is not None:
                return _authenticated(remote)
        token = token_of(request)
        if token:
            return _authenticated(await self._tokens.user(token))
        if request.headers.get("Authorization"):
            raise unauthorized()
        return None


def _authenticated(user: User) -> User:
    if AUTHENTICATED in user.groups:
        return user
    return replace(user, groups=(*user.groups, AUTHENTICATED))


def _remote_user(request: web.BaseRequest) -> User | None:
    headers = request.headers
    name = headers.get("X-Remote-User", "")
    if not name:
        return None
    extra: dict[str, list[str]] = {}
    for key, value in headers.items():
        if key[: len(_REMOTE_EXTRA)].lower() == _REMOTE_EXTRA:
            extra.setdefault(unquote(key[len(_REMOTE_EXTRA) :].lower()), []).append(value)
    return User(
        name,
        tuple(headers.getall("X-Remote-Group", ())),
        headers.get("X-Remote-Uid", ""),
        tuple((key, tuple(values)) for key, values in sorted(extra.items())),
    )
