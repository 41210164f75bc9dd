"""Quantities as Kubernetes writes them, and what pods request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.kube import quantity
from services.common.kube.pod_requests import pod_requests
from services.scheduler.shape import make_shape, pod_shape


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("1", 1000), ("100m", 100), ("1.5", 1500), ("0.1", 100), ("1Gi", 2**30 * 1000), ("500M", 500 * 10**9),
        ("1e3", 10**6), ("1E3", 10**6), ("1E", 10**21), ("12n", 1), (2, 2000), (".5", 500), ("5.", 5000), ("-1", -1000),
        ("128974848", 128974848000), ("1k", 10**6),
    ],
)  # fmt: skip
def test_parse(text: str | int, milli: int) -> None:
    assert quantity.parse(text) == milli


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "1gi", "--1", "1.2.3", "1KI"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no Kubernetes quantity"):
        quantity.parse(text)


@given(st.integers(0, 2**60), st.sampled_from(["cpu", "memory", "pods", "example.com/gpu"]))
def test_rendering_is_read_back(milli: int, resource: str) -> None:
    assert quantity.parse(quantity.render(milli, resource)) == milli


def container(cpu: str = "", limit: str = "", **fields: Any) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if cpu:
        resources["requests"] = {"cpu": cpu}
    if limit:
        resources["limits"] = {"cpu": limit}
    return {"name": "c", "resources": resources, **fields}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container("100m"), container("200m")]}, 300),
        ({"containers": [container(limit="1")]}, 1000),
        ({"containers": [container("100m", "1")]}, 100),
        ({"containers": [container("100m")], "initContainers": [container("2")]}, 2000),
        ({"containers": [container("100m")], "initContainers": [container("1", restartPolicy="Always"), container("2")]}, 3000),
        ({"containers": [container("100m")], "initContainers": [container("2"), container("1", restartPolicy="Always")]}, 2000),
        ({"containers": [container("100m")], "overhead": {"cpu": "50m"}}, 150),
        ({"containers": [container("100m")], "resources": {"requests": {"cpu": "1"}}}, 1000),
        ({"containers": [container()]}, 0),
    ],
)  # fmt: skip
def test_pod_requests(spec: dict[str, Any], cpu: int) -> None:
    assert pod_requests(spec).get("cpu", 0) == cpu


def test_equal_shapes_are_one_object() -> None:
    spec = {"containers": [container("100m")], "nodeSelector": {"a": "b"}, "serviceAccountName": "x"}
    assert pod_shape(spec) is pod_shape({**spec, "serviceAccountName": "y"})
    assert make_shape({"cpu": 1}) is not make_shape({"cpu": 2})
    assert make_shape({"cpu": 1}).node_key == make_shape({"cpu": 2}).node_key
