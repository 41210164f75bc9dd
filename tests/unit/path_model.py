"""What kube-apiserver makes of a request path: Go's unescaping, then RequestInfoFactory, written down from its source."""

from __future__ import annotations

from typing import NamedTuple

HEX = "0123456789abcdefABCDEF"


class Place(NamedTuple):
    """Group, version, namespace, resource, name, subresource."""

    group: str
    version: str
    namespace: str
    resource: str
    name: str
    subresource: str


def unescape(raw: str) -> bytes | None:
    """Go's url.PathUnescape, in bytes; None for an escape that is none (Go answers 400)."""
    out, at = bytearray(), 0
    data = raw.encode("utf-8", "surrogateescape")
    while at < len(data):
        if data[at : at + 1] == b"%":
            digits = data[at + 1 : at + 3].decode("latin-1")
            if len(digits) < 2 or any(d not in HEX for d in digits):
                return None
            out.append(int(digits, 16))
            at += 3
        else:
            out.append(data[at])
            at += 1
    return bytes(out)


def place_of(raw_path: str) -> Place | None:
    """The resource that a path names; None for a non-resource request or one that is refused."""
    path = unescape(raw_path)
    if path is None:
        return None
    parts = path.decode("utf-8", "replace").strip("/").split("/")
    if len(parts) < 3 or parts[0] not in ("api", "apis"):
        return None
    group, rest = "", parts[1:]
    if parts[0] == "apis":
        if len(parts) < 4:
            return None
        group, rest = parts[1], parts[2:]
    version, rest = rest[0], rest[1:]
    proxied = rest[0] == "proxy"
    if rest[0] in ("proxy", "watch"):
        if len(rest) < 2:
            return None
        rest = rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in ("status", "finalize"):
            rest = rest[2:]
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 and not proxied else ""
    return Place(group, version, namespace, rest[0], name, subresource)
