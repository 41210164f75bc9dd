"""Prints a line for every ConfigMap of every cluster, now and after each change.

    reclock dev examples/python/configmap_logger.py
"""

from __future__ import annotations

from reclock import Request, controller, run


@controller(for_="v1/configmaps")
async def configmap_logger(request: Request) -> None:
    """`<cluster> <namespace>/<name> <its keys>`; `gone` when it was deleted."""
    found = await request.get()
    keys = "gone" if found is None else ",".join(sorted(found.get("data") or {})) or "-"
    print(f"{request.cluster_name} {request.namespace}/{request.name} {keys}", flush=True)


if __name__ == "__main__":
    run(configmap_logger)
