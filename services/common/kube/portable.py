"""What of an object means something in one cluster only, and is left out of its copies in others. Pure."""

from __future__ import annotations

from typing import Any

ANNOTATIONS = (
    "kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/",
    "batch.kubernetes.io/cronjob-scheduled-timestamp", "pv.kubernetes.io/", "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/storage-provisioner",
)  # fmt: skip
"""Beginnings of annotations that a cluster's own controllers write and read."""


def service_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """A Service's spec without the addresses and ports that each cluster gives out itself; a headless one stays so."""
    gone = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "healthCheckNodePort")
    kept = {key: value for key, value in spec.items() if key not in gone}
    if spec.get("clusterIP") == "None":
        kept["clusterIP"] = "None"
    kept["ports"] = [{key: value for key, value in port.items() if key != "nodePort"} for port in spec.get("ports") or []]
    return kept
