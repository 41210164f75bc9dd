"""Credentials of a member that go bad while it is in use: the cluster stays, and everybody is told why and since when.

Every process is a real one: the plugin, discovery, the front, `reclock clusters`, and an API server that judges certificates.
"""

from __future__ import annotations

import base64
import json
import re
import stat
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from reclock.discovery.v1 import discovery_pb2 as pb
from reclock.discovery.v1 import discovery_pb2_grpc
from tests.kube.session.test_placement import reclock
from tests.kube.session.tools import RunningFleet, eventually

LIFE = 8
"""Seconds that what the plugin hands out lives: it has to run again and again."""
PLUGIN = f"""#!{sys.executable}
import datetime, json, pathlib, time
here = pathlib.Path(__file__).parent
while (mode := (here / "mode").read_text()) == "hang":
    time.sleep(0.1)
if mode == "noise":
    print("A new version of this plugin is available!")
end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds={LIFE})
status = {{"expirationTimestamp": end.isoformat(), **json.loads((here / "user").read_text())}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""


class West:
    """West's kubeconfig as discovery reads it, with other users; and what is said of west everywhere."""

    def __init__(self, fleet: RunningFleet) -> None:
        self.fleet = fleet
        self.file = fleet.layout.members / "west.kubeconfig"
        self.before = self.file.read_text()
        at = json.loads(fleet.layout.fleet_json.read_text())["services"]["discovery"]
        self._http, self._channel = at["httpAddress"], grpc.insecure_channel(at["grpcAddress"])
        self.stub = discovery_pb2_grpc.DiscoveryServiceStub(self._channel)

    def use(self, user: dict[str, Any] | None) -> None:
        """Give west another user; None: its own."""
        config = yaml.safe_load(self.before)
        if user is not None:
            config["users"][0]["user"] = user
        fresh = self.file.parent.parent / "west.fresh"
        fresh.write_text(yaml.safe_dump(config))
        fresh.rename(self.file)

    def close(self) -> None:
        """All as before."""
        self.use(None)
        eventually(self.is_well, 60)
        self._channel.close()

    def object(self) -> dict[str, Any]:
        """Its Cluster, as `reclock clusters -o json` has it."""
        answer = json.loads(reclock(self.fleet, "clusters", "-o", "json"))
        return next(one for one in answer["clusters"] if one["metadata"]["name"] == "west")

    def condition(self, kind: str) -> dict[str, Any]:
        return next((one for one in self.object()["status"]["conditions"] if one["type"] == kind), {})

    def is_well(self) -> bool:
        return all(self.condition(kind).get("status") == "True" for kind in ("Configured", "Ready"))

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self._http}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def told_everywhere(self, kind: str, reason: str, message: str, began: datetime) -> datetime:
        """See the condition in the object, in the table, in metrics and in the stream; returns since when it is so."""
        shown = eventually(lambda: self._shown(kind, reason, message), 60)
        since = datetime.fromisoformat(shown["lastTransitionTime"])
        assert began - timedelta(seconds=2) <= since <= datetime.now(UTC)
        [row] = [line for line in reclock(self.fleet, "clusters").splitlines() if line.startswith("west ")]
        assert re.search(rf"{reason}: .*{re.escape(message)}.* \(\d+s\)", row), row
        found = re.search(
            rf'unhealthy_since_seconds\{{cluster="west",reason="{reason}"\}} (\S+)', self.metrics()
        )
        assert found and abs(float(found[1]) - since.timestamp()) < 1.5
        streamed = {one.type: one for one in self.streamed().conditions}[kind]
        assert (streamed.status, streamed.reason) == ("False", reason) and message in streamed.message
        assert abs(streamed.last_transition.ToDatetime(UTC) - since) < timedelta(seconds=1.5)
        return since

    def _shown(self, kind: str, reason: str, message: str) -> dict[str, Any]:
        one = self.condition(kind)
        return one if one.get("reason") == reason and message in one.get("message", "") else {}

    def streamed(self) -> pb.Cluster:
        """West, from the snapshot of a new stream."""
        call = self.stub.WatchClusters(pb.WatchClustersRequest(), timeout=20)
        found = next(event.cluster for event in call if event.cluster.name == "west")
        call.cancel()
        assert isinstance(found, pb.Cluster)
        return found


@pytest.fixture
def west(fleet: RunningFleet) -> Iterator[West]:
    one = West(fleet)
    yield one
    one.close()


def test_a_plugin_that_prints_noise_then_hangs_then_recovers(west: West, tmp_path: Path) -> None:
    own = yaml.safe_load(west.before)["users"][0]["user"]
    names = {"client-certificate-data": "clientCertificateData", "client-key-data": "clientKeyData"}
    user = {there: base64.b64decode(own[here]).decode() for here, there in names.items()}
    (tmp_path / "user").write_text(json.dumps(user))
    mode, plugin = tmp_path / "mode", tmp_path / "plugin"
    plugin.write_text(PLUGIN)
    plugin.chmod(stat.S_IRWXU)
    mode.write_text("good")
    west.use({"exec": {"command": str(plugin), "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}})
    eventually(west.is_well, 60)
    engaged, uid = west.object()["status"]["engagedAt"], west.object()["status"]["uid"]

    began = datetime.now(UTC)
    mode.write_text("noise")
    since = west.told_everywhere("Reachable", "CredentialsUnavailable", "its answer is no JSON", began)
    # It is no other trouble when the plugin hangs: since-when stays.
    mode.write_text("hang")
    assert west.told_everywhere("Reachable", "CredentialsUnavailable", "its plugin has not answered yet", began) == since
    kept = west.object()["status"]
    assert (kept["engagedAt"], kept["uid"]) == (engaged, uid), "the last good cluster stays"
    listed = west.fleet.kubectl.run("get", "nodes")
    assert listed.code == 0 and "east-n0" in listed.out and "west" in listed.err
    assert user["clientKeyData"].splitlines()[1] not in west.metrics() + json.dumps(west.object())

    mode.write_text("good")
    eventually(west.is_well, 60)
    assert "CredentialsUnavailable" not in west.metrics()
    eventually(lambda: sum("west" in n["metadata"]["name"] for n in west.fleet.kubectl.items("nodes")) == 2, 60)
    assert [change["reason"] for change in west.object()["status"]["history"]].count("CredentialsUnavailable") >= 1


def ending(fleet: RunningFleet, seconds: float) -> dict[str, str]:
    """An administrator of west whose certificate ends soon."""
    pki = fleet.layout.state("west") / "pki"
    issuer = x509.load_pem_x509_certificate((pki / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((pki / "ca.key").read_bytes(), None)
    own = yaml.safe_load((fleet.layout.members / "west.kubeconfig").read_text())["users"][0]["user"]
    old = x509.load_pem_x509_certificate(base64.b64decode(own["client-certificate-data"]))
    moment = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(issuer.subject).public_key(old.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(moment - timedelta(hours=1))
    builder = builder.not_valid_after(moment + timedelta(seconds=seconds))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    made = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]
    return {"client-certificate-data": base64.b64encode(made).decode(), "client-key-data": own["client-key-data"]}


def test_a_certificate_that_ends_while_it_is_used(west: West) -> None:
    began = datetime.now(UTC)
    west.use(ending(west.fleet, 15))
    engaged = west.object()["status"]["engagedAt"]
    west.told_everywhere("Ready", "CertificateExpired", "our client certificate for it expired at ", began)
    assert west.object()["status"]["engagedAt"] == engaged
    # Renewed: in place.
    west.use(None)
    eventually(west.is_well, 60)
    assert west.object()["status"]["engagedAt"] == engaged
    assert "CertificateExpired" not in west.metrics()
