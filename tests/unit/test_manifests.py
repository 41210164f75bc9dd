"""The manifests that an operator applies: whole, and in step with the configuration that services accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from services.aggregator.config import AggregatorConfig
from services.common.config import ServiceConfig, load
from services.discovery.config import DiscoveryConfig
from services.reconciler.config import ReconcilerConfig
from services.scheduler.config import SchedulerConfig
from services.sinker.config import SinkerConfig

BASE = Path(__file__).resolve().parents[2] / "deploy" / "kustomize" / "base"
STRUCTS: dict[str, type[ServiceConfig]] = {
    "aggregator": AggregatorConfig,
    "discovery": DiscoveryConfig,
    "reconciler": ReconcilerConfig,
    "scheduler": SchedulerConfig,
    "sinker": SinkerConfig,
}


@pytest.mark.parametrize("service", STRUCTS)
def test_configuration_of_the_manifests_is_accepted(service: str) -> None:
    config = load(STRUCTS[service], service, ["--config", str(BASE / "config" / f"{service}.yaml")])
    assert config.grpc_address.startswith("0.0.0.0:74")
    assert config.tls


@pytest.mark.parametrize("directory", ["crds", "defaults"])
def test_every_manifest_is_listed(directory: str) -> None:
    folder = BASE / directory
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(
        path.name for path in folder.glob("*.yaml") if path.name != "kustomization.yaml"
    )


@pytest.mark.parametrize("path", sorted((BASE / "crds").glob("[!k]*.yaml")), ids=lambda path: path.stem)
def test_kubectl_explain_says_what_each_field_is(path: Path) -> None:
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    parts = {name: schema["properties"][name] for name in ("spec", "status") if name in schema["properties"]}
    fields = {"": schema, **parts}
    for part, of in parts.items():
        fields.update({f"{part}.{name}": field for name, field in of["properties"].items()})
    assert [name for name, field in fields.items() if not field.get("description")] == []


@pytest.mark.parametrize("service", STRUCTS)
def test_ports_and_probes(service: str) -> None:
    documents: list[dict[str, Any]] = list(
        yaml.safe_load_all((BASE / "services" / f"{service}.yaml").read_text())
    )
    deployment, exposed = documents
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["readinessProbe"]["httpGet"]["port"] == "http" and ports["http"] == 8080
    assert {port["name"] for port in exposed["spec"]["ports"]} <= set(ports)
    # Stopping in order takes up to 37 s; the kubelet must not cut it short.
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 40
