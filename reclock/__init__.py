"""Reclock: one Kubernetes API over many clusters. What users import.

For controllers:

    from reclock import Request, controller, run

    @controller(for_="v1/configmaps")
    async def logger(request: Request) -> None:
        print(request, await request.get())

    run(logger)

The generated stubs are in `reclock.<service>.v1`; what helps in unit tests in `reclock.testing`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from reclock._cache import Cache, Found, IndexFunction
    from reclock._cluster import Cluster
    from reclock._controller import Controller, Mode, controller
    from reclock._errors import (
        AlreadyExists,
        ApiError,
        Conflict,
        Expired,
        Forbidden,
        Invalid,
        LeaseLost,
        NotFound,
        ReclockError,
        RegistrationRefused,
        Unauthorized,
        Unreachable,
    )
    from reclock._fleet import ClusterChange, ClusterInfo, Fleet
    from reclock._informer import Change, Object
    from reclock._queues import Queues
    from reclock._request import Indexed, IndexedObject, Request, SyncRequest
    from reclock._resource import Resource
    from reclock._results import Requeue, Result, Terminal
    from reclock._settings import Settings
    from reclock._sources import (
        FLEET,
        Annotation,
        Changed,
        Channel,
        Field,
        For,
        Index,
        Label,
        On,
        Owner,
        Owns,
        Predicates,
        Seen,
        Target,
        Watch,
    )
    from reclock._sync import SyncCluster, SyncFleet
    from reclock._worker import Worker, run, start

# Loaded when first used: the services and the command line import this package for its stubs alone.
_HOME = {
    "_cache": ("Cache", "Found", "IndexFunction"),
    "_cluster": ("Cluster",),
    "_controller": ("Controller", "Mode", "controller"),
    "_errors": (
        "AlreadyExists", "ApiError", "Conflict", "Expired", "Forbidden", "Invalid", "LeaseLost", "NotFound",
        "ReclockError", "RegistrationRefused", "Unauthorized", "Unreachable",
    ),
    "_fleet": ("ClusterChange", "ClusterInfo", "Fleet"),
    "_informer": ("Change", "Object"),
    "_queues": ("Queues",),
    "_request": ("Indexed", "IndexedObject", "Request", "SyncRequest"),
    "_resource": ("Resource",),
    "_results": ("Requeue", "Result", "Terminal"),
    "_settings": ("Settings",),
    "_sources": (
        "FLEET", "Annotation", "Changed", "Channel", "Field", "For", "Index", "Label", "On", "Owner", "Owns", "Predicates",
        "Seen", "Target", "Watch",
    ),
    "_sync": ("SyncCluster", "SyncFleet"),
    "_worker": ("Worker", "run", "start"),
}  # fmt: skip
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "FLEET", "AlreadyExists", "Annotation", "ApiError", "Cache", "Change", "Changed", "Channel", "Cluster", "ClusterChange",
    "ClusterInfo", "Conflict", "Controller", "Expired", "Field", "Fleet", "For", "Forbidden", "Found", "Index",
    "IndexFunction", "Indexed", "IndexedObject", "Invalid", "Label", "LeaseLost", "Mode", "NotFound", "Object", "On",
    "Owner", "Owns", "Predicates", "Queues", "ReclockError", "RegistrationRefused", "Request", "Requeue", "Resource",
    "Result", "Seen", "Settings", "SyncCluster", "SyncFleet", "SyncRequest", "Target", "Terminal", "Unauthorized",
    "Unreachable", "Watch", "Worker", "__version__", "controller", "run", "start",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'reclock' has no attribute {name!r}")
    value = getattr(import_module(f"reclock.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
