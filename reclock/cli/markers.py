"""`reclock markers`: the version markers, as the front shows them."""

from __future__ import annotations

from typing import Any

from reclock.cli.api import GROUP, Api
from reclock.cli.output import Format, show

COLUMNS = ("TYPE", "CLUSTER", "KIND", "NAMESPACE", "NAME", "MEMBER VERSION", "FLEET VERSION")


async def markers(api: Api, namespace: str, every: bool, form: Format) -> None:
    """Print which object of which member has which version."""
    scope = "" if every else f"/namespaces/{namespace}"
    items = await api.items(f"{GROUP}{scope}/versionmarkers")
    show(
        items,
        form,
        COLUMNS,
        [_row(item) for item in items],
        f"no markers{'' if every else f' in namespace {namespace}; -A shows all'}",
    )


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    store, obj = item.get("store") or {}, item.get("object") or {}
    fleet = ((item.get("template") or {}).get("metadata") or {}).get("resourceVersion", "-")
    return (
        item.get("type", "-"), store.get("cluster") or "(host)", obj.get("kind", "-"), obj.get("namespace") or "-",
        obj.get("name") or "-", obj.get("resourceVersion", "-"), fleet,
    )  # fmt: skip
