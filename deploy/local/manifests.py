"""What the host must hold before Reclock starts: its CRDs, and the default objects of the fleet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from deploy.local.api import Api, ApiError
from deploy.local.errors import FleetFailed
from deploy.local.plane import Say
from deploy.local.probes import until

_BASE = Path(__file__).resolve().parents[1] / "kustomize" / "base"


class ManifestsMissing(FleetFailed):
    """The checkout lacks the CRDs' manifests."""


def documents(directory: Path) -> list[dict[str, Any]]:
    """Every object of the directory's YAML files, in file order; kustomize's own files are left out."""
    found: list[dict[str, Any]] = []
    for path in sorted(directory.glob("*.yaml")):
        if path.name != "kustomization.yaml":
            found += [document for document in yaml.safe_load_all(path.read_text()) if document]
    return found


async def install(host: Api, say: Say) -> None:
    """Applies CRDs and defaults. Raises ManifestsMissing, ApiError, TimeoutError."""
    crds = documents(_BASE / "crds")
    if not crds:
        raise ManifestsMissing(f"no CRDs in {_BASE / 'crds'}")
    for crd in crds:
        await host.apply(crd)
    await until(lambda: _established(host, crds), "the CRDs are not established", 30)
    defaults = documents(_BASE / "defaults")
    await until(lambda: _apply_all(host, defaults), "the default objects cannot be applied", 30)
    say(f"host: {len(crds)} CRDs and {len(defaults)} default objects applied")


async def _established(host: Api, crds: Iterable[dict[str, Any]]) -> str | None:
    for crd in crds:
        name = crd["metadata"]["name"]
        got = await host.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        conditions = got.get("status", {}).get("conditions") or []  # null at first
        if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
            return f"{name}: {[(c['type'], c['status'], c.get('message', '')) for c in conditions]}"
    return None


async def _apply_all(host: Api, objects: Iterable[dict[str, Any]]) -> str | None:
    """A resource that was just established may answer 404 for a moment: said, and asked again."""
    for obj in objects:
        try:
            await host.apply(obj)
        except ApiError as error:
            if error.status not in (404, 429, 503):
                raise
            return f"{obj['kind']} {obj['metadata']['name']}: {error}"
    return None
