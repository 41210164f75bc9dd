"""Bodies of writes: small, so they are taken apart; what is not touched stays as raw JSON, byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec

from services.aggregator.protobuf import to_json
from services.common import errors
from services.common.yaml_json import yaml_to_json

JSON_TYPES = {"", "application/json", "application/octet-stream"}
YAML_TYPE = "application/yaml"
PROTOBUF_TYPE = "application/vnd.kubernetes.protobuf"

Raw = dict[str, msgspec.Raw]


class OwnerReference(msgspec.Struct, rename="camel"):
    """A `metav1.OwnerReference`, as far as routing looks."""

    uid: str = ""
    api_version: str = ""
    kind: str = ""
    name: str = ""


class Metadata(msgspec.Struct, rename="camel"):
    """The metadata that a write is routed by."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_references: list[OwnerReference] | None = None
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None


class PatchMetadata(msgspec.Struct, rename="camel"):
    """The metadata of a merge patch: null takes a field away."""

    owner_references: list[dict[str, Any]] | None = None
    labels: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None


class Envelope(msgspec.Struct, rename="camel"):
    """Type and metadata of an object."""

    api_version: str = ""
    kind: str = ""
    metadata: Metadata = msgspec.field(default_factory=Metadata)


_envelope = msgspec.json.Decoder(Envelope)
_patch = msgspec.json.Decoder(PatchMetadata)
_raw = msgspec.json.Decoder(Raw)
_list = msgspec.json.Decoder(list[msgspec.Raw])


def is_protobuf(content_type: str) -> bool:
    """Whether a body is in Kubernetes' protobuf encoding."""
    return content_type.partition(";")[0].strip().lower() == PROTOBUF_TYPE


async def as_json(body: bytes, content_type: str) -> bytes:
    """Return an object body as JSON; 415 for encodings that cannot be translated, 400 for what is none."""
    media = content_type.partition(";")[0].strip().lower()
    if media in JSON_TYPES:
        return body
    if media == YAML_TYPE:
        return await yaml_to_json(body)
    if media == PROTOBUF_TYPE:
        return to_json(body)
    raise errors.unsupported_media_type(
        f"the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf; got {media}"
    )


def envelope(body: bytes, kind: str = "") -> Envelope:
    """Decode type and metadata; 400 as kube-apiserver words it."""
    try:
        return _envelope.decode(body)
    except msgspec.MsgspecError as error:
        what = f" (must be of type {kind})" if kind else ""
        raise errors.bad_request(
            f"the object provided is unrecognized{what}: couldn't get version/kind; json parse error: {error}"
        ) from error


def patch_metadata(field: msgspec.Raw) -> Raw:
    """Take the metadata of a merge patch apart; 400 where it is none."""
    try:
        _patch.decode(field)
    except msgspec.MsgspecError as error:
        raise errors.bad_request(f"error decoding patch: metadata: {error}") from error
    return split(field)


def split(body: bytes | msgspec.Raw) -> Raw:
    """Take an object apart into its fields; 400 when it is none."""
    try:
        return _raw.decode(body)
    except msgspec.MsgspecError as error:
        raise errors.bad_request(f"json parse error: {error}") from error


def split_list(body: bytes | msgspec.Raw) -> list[msgspec.Raw]:
    """Take an array apart; 400 when it is none."""
    try:
        return _list.decode(body)
    except msgspec.MsgspecError as error:
        raise errors.bad_request(f"json parse error: {error}") from error


def raw(value: Any) -> msgspec.Raw:
    """Encode a value as one field."""
    return msgspec.Raw(msgspec.json.encode(value))


def value(field: msgspec.Raw | None) -> Any:
    """Decode one field; None when absent."""
    return None if field is None else msgspec.json.decode(field)


def join(fields: Raw) -> bytes:
    """Put an object together again."""
    return msgspec.json.encode(fields)
