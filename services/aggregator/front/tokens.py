"""Bearer tokens, reviewed by the host (TokenReview); answers are kept for some seconds, refusals too."""

from __future__ import annotations

import base64
import binascii
import hashlib

from aiohttp import web
from prometheus_client import Counter

from services.common.cache import LoadingCache
from services.common.errors import unauthorized
from services.common.kube.client import KubeClient
from services.common.kube.reviews import TokenReviews, User

VALID_SECONDS = 10.0
INVALID_SECONDS = 2.0
SUBPROTOCOL = "base64url.bearer.authorization.k8s.io."
"""How browsers, which cannot set headers on a WebSocket, hand a token over."""

REVIEWS = Counter("reclock_aggregator_token_reviews_total", "TokenReviews asked of the host", ["valid"])


class _Answer:
    """A review's outcome; an object of its own because the cache takes None for a miss."""

    __slots__ = ("user",)

    def __init__(self, user: User | None) -> None:
        self.user = user


class Tokens:
    """Turns tokens into users. Tokens are kept as hashes only."""

    def __init__(self, host: KubeClient) -> None:
        self._host = host
        self._reviews = TokenReviews()
        self._cache: LoadingCache[bytes, _Answer] = LoadingCache()

    async def user(self, token: str) -> User:
        """Return the token's user; 401 for a token that the host refuses, 503 when it cannot be asked."""
        key = hashlib.sha256(token.encode()).digest()
        answer = self._cache.peek(key) or await self._cache.get(key, lambda: self._review(token))
        if answer.user is None:
            raise unauthorized()
        return answer.user

    async def _review(self, token: str) -> tuple[_Answer, float]:
        user = await self._reviews.ask(self._host, token)
        REVIEWS.labels(str(user is not None).lower()).inc()
        return _Answer(user), INVALID_SECONDS if user is None else VALID_SECONDS


def token_of(request: web.BaseRequest) -> str:
    """Return the request's bearer token, or ""; 401 for what cannot be one."""
    header = request.headers.get("Authorization", "")
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "bearer":
        if not token.isascii():
            raise unauthorized()  # no token is, and a review could not be asked about bytes that are no text
        return token.strip()
    if "Sec-WebSocket-Protocol" in request.headers:
        for protocol in _subprotocols(request):
            if protocol.startswith(SUBPROTOCOL):
                encoded = protocol[len(SUBPROTOCOL) :]
                try:
                    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
                except (binascii.Error, UnicodeDecodeError):
                    raise unauthorized() from None
    return ""


def without_token(request: web.BaseRequest) -> str:
    """The request's WebSocket subprotocols but for the one that is a token."""
    return ", ".join(protocol for protocol in _subprotocols(request) if not protocol.startswith(SUBPROTOCOL))


def _subprotocols(request: web.BaseRequest) -> list[str]:
    values = request.headers.getall("Sec-WebSocket-Protocol", ())
    return [part.strip() for value in values for part in value.split(",") if part.strip()]
