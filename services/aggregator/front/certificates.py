"""Client certificates: which user a verified certificate stands for, and which authority vouched for it."""

from __future__ import annotations

import hashlib
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from services.aggregator.front.identity import AUTHENTICATED
from services.common.kube.reviews import User

CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"


@dataclass(frozen=True, slots=True)
class Peer:
    """What a connection's certificate says; `proxy` is a front proxy that names users in headers."""

    user: User | None
    proxy: bool
    not_after: float  # seconds since the epoch

    def valid(self) -> bool:
        return time.time() < self.not_after


class Authorities:
    """The certificate files that clients are checked against.

    TLS verifies against all of them together, and against those that have been taken out since the start (its contexts
    can only learn): what counts is whether the authority at the end of the verified chain is in the files now. Where
    both kinds are set, the issuer decides which one a certificate is of: a front proxy's must not pass for a user, nor
    a user's for a proxy.
    """

    def __init__(self, client_ca: str, request_header_ca: str = "", proxy_names: tuple[str, ...] = ()) -> None:
        self.client_ca = client_ca
        self.request_header_ca = request_header_ca
        self._names = proxy_names
        self._users = self._proxies = list[x509.Certificate]()
        self.anchors: frozenset[bytes] = frozenset()  # the authorities that are trusted, in DER; another set when they change
        self.reload()

    def reload(self) -> bool:
        """Read the files anew; True when the authorities are others. OSError and ValueError leave all as it was."""
        users, proxies = _load(self.client_ca), _load(self.request_header_ca)
        anchors = frozenset(one.public_bytes(Encoding.DER) for one in (*users, *proxies))
        self._users, self._proxies = users, proxies
        if anchors == self.anchors:
            return False
        self.anchors = anchors
        return True

    def files(self) -> list[str]:
        """Paths to load for verification."""
        return [path for path in (self.client_ca, self.request_header_ca) if path]

    def connected(self, tls: ssl.SSLObject) -> Peer | None:
        """Who is behind a connection's certificate; None without one, or where its authority is trusted no more."""
        certificate, der = tls.getpeercert(), tls.getpeercert(binary_form=True)
        if not certificate or der is None or not self._trusts(der, verified_chain(tls)):
            return None
        return self.peer(certificate, der)

    def _trusts(self, der: bytes, chain: list[bytes]) -> bool:
        if chain:
            return chain[-1] in self.anchors
        # A session that goes on where another ended has no chain: then the leaf's own issuer must be known.
        return _issued(x509.load_der_x509_certificate(der), [*self._users, *self._proxies])

    def peer(self, certificate: Mapping[str, Any], der: bytes | None) -> Peer | None:
        """Return who is behind a verified certificate (`SSLSocket.getpeercert()`, and its DER form)."""
        subject = _subject(certificate)
        name = subject.get("commonName", [""])[0]
        not_after = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        if self.request_header_ca:
            if der is None:
                return None
            leaf = x509.load_der_x509_certificate(der)
            if _issued(leaf, self._proxies):
                known = not self._names or name in self._names
                return Peer(None, True, not_after) if known else None
            if not _issued(leaf, self._users):
                return None
        if not self.client_ca or not name:
            return None
        extra = ((CREDENTIAL_ID, (f"X509SHA256={hashlib.sha256(der).hexdigest()}",)),) if der else ()
        groups = [group for group in subject.get("organizationName", ()) if group != AUTHENTICATED]
        return Peer(User(name, groups=(*groups, AUTHENTICATED), extra=extra), False, not_after)


def verified_chain(tls: Any) -> list[bytes]:
    """The chain that TLS has found for the peer's certificate, the authority last, in DER; [] for a resumed session."""
    if hasattr(tls, "get_verified_chain"):  # Python 3.13
        return list(tls.get_verified_chain() or ())
    found = tls._sslobj.get_verified_chain() or ()
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in found]


def _subject(certificate: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for names in certificate.get("subject", ()):
        for key, value in names:
            found.setdefault(key, []).append(value)
    return found


def _load(path: str) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(Path(path).read_bytes()) if path else []


def _issued(leaf: x509.Certificate, authorities: list[x509.Certificate]) -> bool:
    for authority in authorities:
        try:
            leaf.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False
