"""CustomResourceDefinitions: serves their types and says so in their status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deploy.local.sim.controllers.manager import Controller
from deploy.local.sim.types import Object, ResourceType

_PLURAL = "customresourcedefinitions.apiextensions.k8s.io"


class Definitions(Controller):
    """Defines a CRD's types in the cluster's catalog."""

    watches = (_PLURAL,)

    def reconcile(self, key: str) -> None:
        definition = self.find(_PLURAL, key)
        if definition is None:
            self.core.catalog.define(key, ())
            return
        self.core.catalog.define(key, custom_types(definition))
        self.set_status(_PLURAL, key, self._status(definition))

    def _status(self, definition: Object) -> Object:
        spec, old = definition["spec"], definition.get("status") or {}
        conditions = {c["type"]: c for c in old.get("conditions") or ()}
        wanted = {
            "NamesAccepted": ("NoConflicts", "no conflicts found"),
            "Established": ("InitialNamesAccepted", "the initial names have been accepted"),
        }
        for kind, (reason, message) in wanted.items():
            if conditions.get(kind, {}).get("status") != "True":
                conditions[kind] = {
                    "type": kind,
                    "status": "True",
                    "lastTransitionTime": self.core.now(),
                    "reason": reason,
                    "message": message,
                }
        storage = [version["name"] for version in spec["versions"] if version.get("storage")]
        stored = old.get("storedVersions") or []
        return {
            "conditions": list(conditions.values()),
            "acceptedNames": _names(spec),
            "storedVersions": [*stored, *(name for name in storage if name not in stored)],
        }


def _names(spec: Mapping[str, Any]) -> dict[str, Any]:
    names = dict(spec["names"])
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", f"{names['kind']}List")
    return names


def custom_types(definition: Object) -> Iterator[ResourceType]:
    """One type per served version."""
    spec = definition["spec"]
    names = _names(spec)
    for version in spec["versions"]:
        if not version.get("served"):
            continue
        subresources = version.get("subresources") or {}
        yield ResourceType(
            spec["group"],
            version["name"],
            names["plural"],
            names["kind"],
            singular=names["singular"],
            namespaced=spec.get("scope") == "Namespaced",
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=tuple(name for name in ("scale", "status") if name in subresources),
            custom=True,
            unconditional_update=False,
            fields={
                field["jsonPath"].lstrip("."): field["jsonPath"].lstrip(".")
                for field in version.get("selectableFields") or ()
            },
            schema=(version.get("schema") or {}).get("openAPIV3Schema"),
            columns=tuple(version.get("additionalPrinterColumns") or ()),
            scale=subresources.get("scale"),
            definition=definition["metadata"]["name"],
        )
