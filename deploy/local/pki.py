"""Certificates for the local fleet: an authority per trust domain, serving and client certificates from it.

Throw-away keys for one machine: P-256, ten years, readable by their owner only. Never for production.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=3650)
_CLOCK_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class KeyPair:
    """Paths of a PEM certificate and its private key."""

    cert: Path
    key: Path

    def cert_base64(self) -> str:
        return base64.b64encode(self.cert.read_bytes()).decode()

    def key_base64(self) -> str:
        return base64.b64encode(self.key.read_bytes()).decode()


def write_private(path: Path, data: bytes | str) -> Path:
    """Writes a file that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as sink:
        sink.write(data.encode() if isinstance(data, str) else data)
    os.replace(partial, path)
    return path


def write_signing_key(directory: Path, name: str) -> KeyPair:
    """A key pair for service-account tokens; `cert` is the bare public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return KeyPair(write_private(directory / f"{name}.pub", public), _write_key(directory, name, key))


class Authority:
    """A certificate authority that keeps its files in `directory`."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        usage = _usage(cert_sign=True)
        # Every fleet's authority has the same name: by their keys' names a kubeconfig of an earlier one is told apart.
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = builder.add_extension(usage, critical=True).add_extension(identifier, critical=False)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.pair = _write_pair(directory, name, self._certificate, self._key)

    def server(self, name: str, addresses: Sequence[str]) -> KeyPair:
        """A serving certificate for the DNS names and IP addresses given; also good as a client's, for mTLS."""
        alternatives = x509.SubjectAlternativeName([_general_name(address) for address in addresses])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(name, x509.Name([_common(name)]), usages, alternatives)

    def client(self, user: str, groups: Sequence[str] = (), *, file: str = "") -> KeyPair:
        """A client certificate: Kubernetes reads the user from its CN and the groups from its O."""
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*attributes, _common(user)])
        return self._issue(file or user.replace(":", "-"), subject, [ExtendedKeyUsageOID.CLIENT_AUTH], None)

    def _issue(
        self,
        file: str,
        subject: x509.Name,
        usages: Sequence[x509.ObjectIdentifier],
        alternatives: x509.SubjectAlternativeName | None,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._certificate.subject, key)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(cert_sign=False), critical=True)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return _write_pair(self.directory, file, builder.sign(self._key, hashes.SHA256()), key)


def _common(name: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, name)


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _CLOCK_SKEW).not_valid_after(now + _LIFETIME)


def _usage(*, cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not cert_sign,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=cert_sign,
        crl_sign=cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _write_pair(
    directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> KeyPair:
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return KeyPair(write_private(directory / f"{name}.crt", pem), _write_key(directory, name, key))


def _write_key(directory: Path, name: str, key: ec.EllipticCurvePrivateKey) -> Path:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return write_private(directory / f"{name}.key", pem)
