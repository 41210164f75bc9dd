"""What a cluster's own discovery says of a type: whether it serves it, and in which versions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.resource import Resource

TIMEOUT = 10.0


async def lacks_type(client: KubeClient, resource: Resource) -> bool:
    """Does the cluster itself say that it has no such type in this version? A proxy's 404 must not delete anything."""
    try:
        return await serves_version(client, resource) is False
    except StatusError:
        return False


async def serves_version(client: KubeClient, resource: Resource, *, timeout: float = TIMEOUT) -> bool | None:
    """Does the cluster serve the resource in its version? None where only a proxy may have answered.

    StatusError when it did not answer.
    """
    base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    document = await _document(client, base, timeout)
    if document is not None:
        if document.get("kind") != "APIResourceList":
            return None
        return any(one.get("name") == resource.resource for one in document.get("resources") or [])
    groups = await _document(client, "/apis", timeout)
    if groups is None or groups.get("kind") != "APIGroupList":
        return None
    return False


async def other_version(client: KubeClient, resource: Resource, *, timeout: float = TIMEOUT) -> Resource | None:
    """The resource in the first version, as the cluster prefers them, in which it is served; None where in none."""
    if not resource.group:
        return None
    group = await _document(client, f"/apis/{resource.group}", timeout)
    if group is None or group.get("kind") != "APIGroup":
        return None
    for one in group.get("versions") or []:
        other = replace(resource, version=str(one.get("version", "")))
        if await serves_version(client, other, timeout=timeout):
            return other
    return None


async def _document(client: KubeClient, path: str, timeout: float) -> dict[str, Any] | None:
    """None for 404."""
    try:
        found = (await client.request("GET", path, timeout=timeout)).json()
    except StatusError as error:
        if error.code == 404:
            return None
        raise
    return found if isinstance(found, dict) else {}
