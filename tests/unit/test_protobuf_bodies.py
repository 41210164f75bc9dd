"""Protobuf bodies as JSON: what is refused, and that nothing is lost in silence."""

from __future__ import annotations

import json

import pytest

from services.aggregator.protobuf import MAGIC, to_json
from services.common.errors import StatusError

PROTOBUF = "application/vnd.kubernetes.protobuf"


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: int | bytes | str) -> bytes:
    """One field of a message: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value & (1 << 64) - 1)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def body(api_version: str, kind: str, message: bytes) -> bytes:
    return MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, message)


def translated(data: bytes) -> object:
    return json.loads(to_json(data))


def refused(data: bytes) -> StatusError:
    with pytest.raises(StatusError) as error:
        to_json(data)
    return error.value


def test_a_pod() -> None:
    labels = field(11, field(1, "app") + field(2, "web"))
    limits = field(1, field(1, "cpu") + field(2, field(1, "100m")))
    container = field(1, "main") + field(2, "example/web:1") + field(8, limits)
    volume = field(1, "work") + field(2, field(2, b""))  # an inline source: emptyDir without settings
    spec = field(1, volume) + field(2, container) + field(4, -1) + field(11, 0) + field(21, 0)
    pod = field(1, field(1, "web") + labels + field(8, b"")) + field(2, spec) + field(3, b"")
    assert translated(body("v1", "Pod", pod)) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "volumes": [{"name": "work", "emptyDir": {}}],
            "containers": [
                {"name": "main", "image": "example/web:1", "resources": {"limits": {"cpu": "100m"}}}
            ],
            "terminationGracePeriodSeconds": -1,
            "automountServiceAccountToken": False,  # optional: false is not as absent
        },
    }


def test_delete_options_of_any_group() -> None:
    options = field(1, 0) + field(2, field(1, "some-uid")) + field(4, "Foreground")
    for group_version in ("v1", "apps/v1", "example.com/v1alpha1"):
        assert translated(body(group_version, "DeleteOptions", options)) == {
            "apiVersion": group_version,
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": "some-uid"},
            "propagationPolicy": "Foreground",
        }


def test_what_cannot_be_translated_is_refused_by_name() -> None:
    unknown = refused(body("v1", "Pod", field(2, field(999, "new in a later version"))))
    assert unknown.code == 415
    assert "field 999 of core/v1.PodSpec" in unknown.message
    assert "application/json" in unknown.message
    strange = refused(body("example.com/v1", "Widget", b""))
    assert (strange.code, "example.com/v1 Widget" in strange.message) == (415, True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        MAGIC[:3],
        MAGIC + b"\x0a\x7f",
        MAGIC + b"\xff" * 12,
        body("v1", "Pod", b"\x0a"),
        body("v1", "Pod", field(1, 5)),
        body("v1", "Pod", field(1, field(1, b"\xff\xfe"))),
        body("apps/v1", "ControllerRevision", field(2, field(1, "{not json"))),
    ],
)
def test_what_is_no_protobuf_is_400(data: bytes) -> None:
    assert refused(data).code == 400


def test_every_cut_of_a_body_is_refused_or_an_object() -> None:
    whole = body("v1", "Pod", field(1, field(1, "web") + field(11, field(1, "a") + field(2, "b"))))
    for end in range(len(whole)):
        try:
            assert isinstance(translated(whole[:end]), dict)
        except StatusError as error:
            assert error.code in (400, 415)


def test_objects_within_objects_are_limited() -> None:
    data = b""
    for _ in range(3000):
        data = body("apps/v1", "ControllerRevision", field(2, field(1, data)))
    assert refused(data).code == 400
