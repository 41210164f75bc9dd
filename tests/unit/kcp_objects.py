"""Objects of kcp, as far as the provider looks at them."""

from __future__ import annotations

from typing import Any


def crd(group: str, plural: str, kind: str) -> dict[str, Any]:
    """The type, cluster-scoped, any content."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Cluster", "names": {"plural": plural, "kind": kind}, "versions": [version]},
    }  # fmt: skip


def workspace(name: str, phase: str = "Ready") -> dict[str, Any]:
    """A child of the workspace that it is in."""
    return {"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": {"name": name}, "status": {"phase": phase}}
