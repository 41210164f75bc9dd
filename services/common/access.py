"""Who a caller of gRPC is, and what it may: a user's own identity, judged by the host.

A bearer token (TokenReview on the host), else the client certificate (common name: user, organisations: groups), else,
on plaintext from this machine, the configured local user. Access by SubjectAccessReview on the host.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID

from services.common.cache import LoadingCache
from services.common.config import is_loopback
from services.common.errors import forbidden, unauthorized, unavailable
from services.common.kube.client import KubeClient
from services.common.kube.reviews import TokenReviews, User, review_access

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
GROUP = "reclock.dev"
VALID_SECONDS = 10.0
INVALID_SECONDS = 2.0


class Attributes(NamedTuple):
    """What is to be done, as an access review names it: a resource, or a `path` alone."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{self.verb} path {self.path}"
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        what = f"{resource}/{self.subresource}" if self.subresource else resource
        named = f" {self.name!r}" if self.name else ""
        return f"{self.verb} {what}{named}" + (f" in namespace {self.namespace!r}" if self.namespace else "")


class Access:
    """Authentication and authorisation of a service's gRPC.

    `host` is asked once it is set; until then, and while it does not answer, everything that needs it is 503.
    `local` is who calls in plaintext from this machine without a token; None: whoever does is not judged.
    """

    def __init__(self, host: KubeClient | None = None, local: User | None = None) -> None:
        self.host = host
        self.local = local
        self.own: dict[bytes, User] = {}
        """Digest of a token that this process made for itself -> who shows it."""
        self._tokens: LoadingCache[bytes, tuple[User | None]] = LoadingCache()
        self._reviews = TokenReviews()
        self._decisions: LoadingCache[tuple[User, Attributes], bool] = LoadingCache()

    def own_token(self, user: User) -> str:
        """A token, for a client in this process."""
        token = secrets.token_urlsafe(16)
        self.own[hashlib.sha256(token.encode()).digest()] = user
        return token

    def is_own(self, user: User) -> bool:
        """Whether it is a client in this process: nobody else can be, whatever name a token or certificate has."""
        return any(user is own for own in self.own.values())

    async def user(self, context: Any) -> User | None:
        """Who calls; StatusError 401 when nobody can tell, 503 when the host cannot be asked."""
        token = token_of(context.invocation_metadata() or ())
        if token:
            return await self.by_token(token)
        if pem := (context.auth_context().get("x509_pem_cert") or [b""])[0]:
            return by_certificate(pem)
        if is_local(context):
            return self.local
        raise unauthorized("neither a client certificate nor a bearer token")

    async def by_token(self, token: str) -> User:
        """Whose token it is; raises as `user`."""
        key = hashlib.sha256(token.encode()).digest()
        if key in self.own:
            return self.own[key]
        (user,) = await self._tokens.get(key, lambda: self._review(token))
        if user is None:
            raise unauthorized("the host does not accept the token")
        return user

    def _judge(self) -> KubeClient:
        if self.host is None:
            raise unavailable("the host, which judges callers, has not been reached yet", retry_after=1)
        return self.host

    async def _review(self, token: str) -> tuple[tuple[User | None], float]:
        user = await self._reviews.ask(self._judge(), token)
        return (user,), INVALID_SECONDS if user is None else VALID_SECONDS

    async def require(self, user: User, what: Attributes) -> None:
        """StatusError 403 unless the host lets `user` do it, 503 when the host cannot be asked."""
        if MASTERS in user.groups:
            return
        if not await self._decisions.get((user, what), lambda: self._decide(user, what)):
            raise forbidden(f"user {user.name!r} cannot {what} on the host")

    async def _decide(self, user: User, what: Attributes) -> tuple[bool, float]:
        if what.path:
            attributes = {"nonResourceAttributes": {"verb": what.verb, "path": what.path}}
        else:
            attributes = {"resourceAttributes": {key: value for key, value in what._asdict().items() if value}}
        allowed, _ = await review_access(self._judge(), user, attributes)
        return allowed, VALID_SECONDS if allowed else INVALID_SECONDS


def is_local(context: Any) -> bool:
    """Whether the caller is on this machine, without TLS."""
    if context.auth_context().get("transport_security_type") == [b"ssl"]:
        return False
    kind, _, address = str(context.peer()).partition(":")
    if kind in ("unix", "unix-abstract"):
        return True
    return kind in ("ipv4", "ipv6") and is_loopback(address.replace("%5B", "[").replace("%5D", "]"))


def has_certificate(context: Any) -> bool:
    """Whether the caller has shown a certificate of our authority."""
    return bool(context.auth_context().get("x509_pem_cert"))


def names_of(context: Any) -> frozenset[str]:
    """The names in a caller's certificate (URI and DNS alternative names, common name); none without one."""
    auth = context.auth_context()
    values = [*auth.get("x509_subject_alternative_name", ()), *auth.get("x509_common_name", ())]
    return frozenset(value.decode("utf-8", "replace") for value in values)


def may_have_access(context: Any, allowed: Collection[str]) -> bool:
    """Whether credentials of members may go to a caller: by a name of its certificate, or on this machine."""
    if has_certificate(context):
        return not names_of(context).isdisjoint(allowed)
    return is_local(context)


def token_of(metadata: Iterable[tuple[str, Any]]) -> str:
    """The bearer token in a call's metadata, "" without any; 401 for what is none."""
    given = [str(value) for key, value in metadata if key == "authorization"]
    if not given:
        return ""
    scheme, _, token = given[0].partition(" ")
    token = token.strip()
    if len(given) > 1 or scheme.lower() != "bearer" or not token or not token.isascii():
        raise unauthorized("metadata `authorization` is no bearer token")
    return token


def by_certificate(pem: bytes) -> User:
    """The user that a verified certificate stands for; 401 without a common name, or when it has ended."""
    certificate = x509.load_pem_x509_certificate(pem)
    name = _texts(certificate.subject, NameOID.COMMON_NAME)
    if not name:
        raise unauthorized("the client certificate has no common name")
    # TLS looks once, a stream may last longer.
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise unauthorized("the client certificate has expired")
    return User(name[0], (*_texts(certificate.subject, NameOID.ORGANIZATION_NAME), AUTHENTICATED))


def _texts(subject: x509.Name, oid: x509.ObjectIdentifier) -> Sequence[str]:
    return tuple(str(attribute.value) for attribute in subject.get_attributes_for_oid(oid))
