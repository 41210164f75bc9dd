"""Who a worker is, and what it may: its own identity, judged by the host.

A bearer token (TokenReview on the host), else the client certificate (common name: user, organisations: groups), else,
on plaintext from this machine, the configured local user. Access by SubjectAccessReview on the host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

from services.common.cache import LoadingCache
from services.common.errors import forbidden, unauthorized
from services.common.grpc import peer_may_have_secrets
from services.common.kube.client import KubeClient
from services.common.kube.resource import Resource

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
GROUP, CONTROLLERS = "reclock.dev", "controllers"
"""What the host's RBAC is asked about a controller of some name: verbs work, list and update."""
VALID_SECONDS = 10.0
INVALID_SECONDS = 2.0
_TOKEN_REVIEW = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
_ACCESS_REVIEW = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)


@dataclass(frozen=True, slots=True)
class User:
    """A user as Kubernetes knows users."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Access:
    """Authentication and authorisation of the reconciler's gRPC."""

    def __init__(self, host: KubeClient, local: User) -> None:
        self._host = host
        self._local = local
        self._tokens: LoadingCache[bytes, tuple[User | None]] = LoadingCache()
        self._decisions: LoadingCache[tuple[User, tuple[tuple[str, str], ...]], bool] = LoadingCache()

    async def user(self, context: grpc.aio.ServicerContext) -> User:
        """Who calls; StatusError 401 when nobody can tell."""
        metadata: dict[str, Any] = dict(context.invocation_metadata() or ())
        scheme, _, token = str(metadata.get("authorization", "")).partition(" ")
        if scheme:
            if scheme.lower() != "bearer" or not token.strip():
                raise unauthorized("metadata `authorization` is no bearer token")
            return await self._by_token(token.strip())
        if pem := (context.auth_context().get("x509_pem_cert") or [b""])[0]:
            return by_certificate(pem)
        if peer_may_have_secrets(context):
            return self._local
        raise unauthorized("neither a client certificate nor a bearer token")

    async def _by_token(self, token: str) -> User:
        key = hashlib.sha256(token.encode()).digest()
        (user,) = await self._tokens.get(key, lambda: self._review(token))
        if user is None:
            raise unauthorized("the host does not accept the token")
        return user

    async def _review(self, token: str) -> tuple[tuple[User | None], float]:
        status = (await self._host.create(_TOKEN_REVIEW, None, {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        })).get("status") or {}  # fmt: skip
        user: Mapping[str, Any] = status.get("user") or {}
        if not status.get("authenticated") or not user.get("username"):
            return (None,), INVALID_SECONDS
        extra = tuple((key, tuple(values)) for key, values in sorted((user.get("extra") or {}).items()))
        return (User(user["username"], tuple(user.get("groups") or ()), user.get("uid", ""), extra),), VALID_SECONDS

    async def require(self, user: User, verb: str, group: str, resource: str, *, namespace: str = "", name: str = "") -> None:
        """StatusError 403 unless the host lets `user` do it; what the host cannot be asked is raised as it is."""
        if MASTERS in user.groups:
            return
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace, "name": name}
        key = (user, tuple(attributes.items()))
        if not await self._decisions.get(key, lambda: self._decide(user, attributes)):
            what = f"{resource}.{group}" if group else resource
            where = f" in namespace {namespace!r}" if namespace else ""
            named = f" {name!r}" if name else ""
            raise forbidden(f"user {user.name!r} cannot {verb} {what}{named}{where} on the host")

    async def _decide(self, user: User, attributes: dict[str, str]) -> tuple[bool, float]:
        spec: dict[str, Any] = {
            "user": user.name, "groups": list(user.groups),
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        }  # fmt: skip
        if user.uid:
            spec["uid"] = user.uid
        if user.extra:
            spec["extra"] = {key: list(values) for key, values in user.extra}
        answer = await self._host.create(_ACCESS_REVIEW, None, {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec,
        })  # fmt: skip
        status = answer.get("status") or {}
        allowed = bool(status.get("allowed")) and not status.get("denied")
        return allowed, VALID_SECONDS if allowed else INVALID_SECONDS


def by_certificate(pem: bytes) -> User:
    """The user that a verified certificate stands for; 401 without a common name."""
    subject = x509.load_pem_x509_certificate(pem).subject
    name = _texts(subject, NameOID.COMMON_NAME)
    if not name:
        raise unauthorized("the client certificate has no common name")
    return User(name[0], (*_texts(subject, NameOID.ORGANIZATION_NAME), AUTHENTICATED))


def _texts(subject: x509.Name, oid: x509.ObjectIdentifier) -> Sequence[str]:
    return tuple(str(attribute.value) for attribute in subject.get_attributes_for_oid(oid))

