"""Continue tokens: opaque to clients, whole or refused.

A token names the walk's version, the last key that was sent, and each member's incarnation and version in
that walk, so that a page needs nothing remembered here and any replica can serve it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from services.common.errors import StatusError, bad_request

TAG = 16  # bytes of the HMAC that are kept
INCONSISTENT = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list"
    " without the continue parameter, or use the continue token in this response to retrieve the remainder of"
    " the results. Continuing with the provided token results in an inconsistent list - objects that were"
    " created, modified, or deleted between the time the first chunk was returned and now may show up in the"
    " list."
)


class Token(msgspec.Struct, frozen=True, array_like=True):
    """`version` 0: go on at the newest state (an inconsistent continuation). `after`: the last key sent."""

    scope: str
    after: str
    version: int = 0
    members: dict[str, tuple[str, int]] = {}  # cluster -> (short incarnation, member version)


class Secrets(Protocol):
    """The part of etcd that a shared secret needs."""

    async def get_or_create(self, key: str, value: bytes) -> bytes:
        """The value stored under `key`; `value` is stored first where there is none."""


@dataclass(frozen=True, slots=True)
class TokenCodec:
    """Signs with a key made of the fleet's id and a secret shared by all replicas."""

    fleet_id: str
    secret: bytes = field(repr=False)

    def _tag(self, payload: bytes) -> bytes:
        key = hashlib.sha256(b"reclock/continue/" + self.fleet_id.encode() + b"/" + self.secret).digest()
        return hmac.digest(key, payload, "sha256")[:TAG]

    def encode(self, token: Token) -> str:
        """The token's text for a `continue` parameter."""
        payload = msgspec.msgpack.encode(token)
        return base64.urlsafe_b64encode(self._tag(payload) + payload).decode().rstrip("=")

    def decode(self, text: str, scope: str) -> Token:
        """Read a token of the same request (`scope`); StatusError 400 for any other text."""
        try:
            if not text.isascii():
                raise ValueError("not base64")
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            if not hmac.compare_digest(self._tag(raw[TAG:]), raw[:TAG]):
                raise ValueError("not ours")
            token = msgspec.msgpack.decode(raw[TAG:], type=Token)
        except (ValueError, binascii.Error, msgspec.DecodeError) as error:
            raise bad_request("invalid continue token: continue key is not valid") from error
        if token.scope != scope:
            raise bad_request("invalid continue token: it belongs to a list of something else")
        return token

    def inconsistent(self, token: Token) -> StatusError:
        """410 with a token that goes on behind the same key at the newest state."""
        fresh = self.encode(Token(token.scope, token.after))
        return ExpiredContinue(fresh)


class ExpiredContinue(StatusError):
    """410 that offers another token in its metadata."""

    def __init__(self, token: str) -> None:
        super().__init__(410, "Expired", INCONSISTENT)
        self.token = token

    def to_dict(self) -> dict[str, object]:
        """The Status, with the fresh token where client-go looks for it."""
        return {**super().to_dict(), "metadata": {"continue": self.token}}


def scope_of(resource: str, namespace: str, labels: str, fields: str) -> str:
    """Names a walk: a token of another resource, namespace or selector is refused."""
    text = "\0".join((resource, namespace, labels, fields))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def short(incarnation: str) -> str:
    """An incarnation's fingerprint: tokens travel in URLs."""
    return hashlib.blake2b(incarnation.encode(), digest_size=6).hexdigest()


def member_token(version: int, after: str) -> str:
    """kube-apiserver's own continue token (a stable format) for all keys behind `after` at `version`.

    Its start key is relative to what is listed: `namespace/name`, or the name inside of one namespace.
    """
    raw = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": after + "\0"}, separators=(",", ":"))
    return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")
