"""Bad input gets Kubernetes' own answers."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from typing import Any

import pytest
import yaml

from tests.kube.session.tools import Kubectl, RunningFleet, eventually


class Raw:
    """HTTPS at the front, with the administrator's certificate or with what a test wants."""

    def __init__(self, fleet: RunningFleet, tmp_path: Any, *, certificate: bool = True) -> None:
        import base64

        config = yaml.safe_load(fleet.layout.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server = cluster["server"]
        self.context = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
        )
        if certificate:
            pair = tmp_path / "pair.pem"
            pair.write_bytes(
                base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"])
            )
            self.context.load_cert_chain(pair)

    def __call__(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(self.server + path, data=body, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=20, context=self.context) as answer:
                return answer.status, _first(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())


def _first(text: bytes) -> dict[str, Any]:
    """The whole body, or the first event of a watch."""
    decoded: dict[str, Any] = json.JSONDecoder().raw_decode(text.decode())[0]
    return decoded


@pytest.fixture
def raw(fleet: RunningFleet, tmp_path: Any) -> Raw:
    return Raw(fleet, tmp_path)


PODS = "/api/v1/namespaces/default/pods"


@pytest.mark.parametrize(
    ("path", "code", "reason"),
    [
        ("/api/v1/namespaces/default/gizmos", 404, "NotFound"),
        (f"{PODS}?resourceVersion=abc", 400, "BadRequest"),
        (f"{PODS}?labelSelector=a%3D%3D%3Db", 400, "BadRequest"),
        (f"{PODS}?fieldSelector=spec.gibberish%3Dx", 400, "BadRequest"),
        (f"{PODS}?limit=1&continue=garbage", 400, "BadRequest"),
        (f"{PODS}?resourceVersion=9000000000000000&resourceVersionMatch=NotOlderThan", 504, "Timeout"),
        (f"{PODS}?resourceVersion=128&resourceVersionMatch=Exact", 410, "Expired"),
        (f"{PODS}/missing", 404, "NotFound"),
    ],
)
def test_reads(raw: Raw, path: str, code: int, reason: str) -> None:
    status, answer = raw("GET", path)
    assert (status, answer["kind"], answer["reason"]) == (code, "Status", reason), answer


def test_version_of_the_future_names_its_cause(raw: Raw) -> None:
    _, answer = raw("GET", f"{PODS}?resourceVersion=9000000000000000&resourceVersionMatch=NotOlderThan")
    assert answer["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


def test_watch_from_a_version_older_than_the_window(raw: Raw) -> None:
    status, answer = raw("GET", f"{PODS}?watch=true&resourceVersion=128&timeoutSeconds=5")
    code = answer["object"]["code"] if status == 200 else answer["code"]
    assert code == 410


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "code"),
    [
        ("POST", PODS, b"no json", "application/json", 400),
        ("POST", PODS, b"<pod/>", "application/xml", 415),
        ("POST", PODS, b'{"a":"' + b"x" * (4 * 1024 * 1024) + b'"}', "application/json", 413),
        ("PATCH", f"{PODS}/any", b"{}", "application/unknown-patch", 415),
    ],
)
def test_writes(raw: Raw, method: str, path: str, body: bytes, kind: str, code: int) -> None:
    status, answer = raw(method, path, body, {"Content-Type": kind})
    assert (status, answer["kind"]) == (code, "Status"), answer


def test_credentials(fleet: RunningFleet, tmp_path: Any) -> None:
    nobody = Raw(fleet, tmp_path, certificate=False)
    assert nobody("GET", PODS)[0] == 401
    assert nobody("GET", PODS, headers={"Authorization": "Bearer wrong"})[0] == 401
    assert nobody("GET", "/version")[0] == 200


def test_aggregation_of_a_type_that_no_cluster_has(fleet: RunningFleet) -> None:
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "reclock.dev/v1alpha1", "kind": "APIAggregation", "metadata": {"name": "gizmos.example.com"},
        "spec": {"group": "example.com", "version": "v1", "resource": "gizmos"},
    }))  # fmt: skip

    def refused() -> bool:
        status = fleet.kubectl.json("get", "apiaggregation", "gizmos.example.com").get("status", {})
        return any(
            c["type"] == "Accepted" and c["status"] == "False" and "no cluster serves" in c["message"]
            for c in status.get("conditions", [])
        )

    eventually(refused, 30)
    fleet.kubectl("delete", "apiaggregation", "gizmos.example.com")


def test_workload_that_fits_nowhere_says_why(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=json.dumps({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "huge"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "main", "image": "example/x:1", "resources": {"requests": {"cpu": "500"}}}]}}},
    }))  # fmt: skip

    def told() -> bool:
        workloads = kubectl.items("workloads")
        conditions = (workloads[0].get("status") or {}).get("conditions", []) if workloads else []
        return any(c["status"] == "False" and "cpu" in c["message"] for c in conditions)

    eventually(told, 30)
