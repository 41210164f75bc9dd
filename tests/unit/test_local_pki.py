"""Certificates and kubeconfigs of the local fleet, checked by a TLS handshake with OpenSSL."""

from __future__ import annotations

import base64
import ssl
import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from deploy.local.kubeconfig import Access
from deploy.local.pki import Authority, KeyPair, write_private
from deploy.local.probes import tls_context


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> dict[str, object]:
    """A TLS handshake in memory; gives the certificate that the server saw of the client."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        for side in (one, other):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dict(other.getpeercert() or {})


def serving(pair: KeyPair, authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.pair.cert)
    return context


def test_client_and_server_trust_each_other(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    server = authority.server("server", ["127.0.0.1", "localhost"])
    client = authority.client("jane", ["developers", "admins"])
    for name in ("127.0.0.1", "localhost"):
        seen = handshake(serving(server, authority), tls_context(authority.pair.cert, client), name)
        subject = [pair for group in seen["subject"] for pair in group]  # type: ignore[attr-defined]
        assert ("commonName", "jane") in subject
        assert {value for key, value in subject if key == "organizationName"} == {"developers", "admins"}


def test_another_name_and_another_authority_are_refused(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "a", "ca"), Authority(tmp_path / "b", "ca")
    server = authority.server("server", ["localhost"])
    client = authority.client("jane")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"doesn't match|mismatch"):
        handshake(serving(server, authority), tls_context(authority.pair.cert, client), "elsewhere")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(serving(server, authority), tls_context(other.pair.cert, client), "localhost")


def test_a_client_certificate_cannot_sign(tmp_path: Path) -> None:
    pair = Authority(tmp_path, "ca").client("jane")
    certificate = x509.load_pem_x509_certificate(pair.cert.read_bytes())
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is False
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "jane"


def test_private_files_are_their_owners_only(tmp_path: Path) -> None:
    pair = Authority(tmp_path / "pki", "ca").client("jane")
    assert stat.S_IMODE(pair.key.stat().st_mode) == 0o600
    path = write_private(tmp_path / "file", "one")
    assert stat.S_IMODE(write_private(path, "two").stat().st_mode) == 0o600
    assert path.read_text() == "two"
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_a_kubeconfig_holds_everything_inline(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    pair = authority.client("admin", ["system:masters"])
    access = Access("east", "https://127.0.0.1:6443", authority.pair.cert, "admin", pair)
    read = yaml.safe_load(access.write(tmp_path / "kubeconfig").read_text())
    assert read["current-context"] == "east"
    assert read["contexts"] == [{"name": "east", "context": {"cluster": "east", "user": "admin"}}]
    cluster, user = read["clusters"][0]["cluster"], read["users"][0]["user"]
    assert cluster["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == authority.pair.cert.read_bytes()
    assert base64.b64decode(user["client-certificate-data"]) == pair.cert.read_bytes()
    assert base64.b64decode(user["client-key-data"]) == pair.key.read_bytes()
