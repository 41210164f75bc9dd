"""Whether a cluster serves a type at all."""

from __future__ import annotations

from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.resource import Resource

TIMEOUT = 10.0


async def lacks_type(client: KubeClient, resource: Resource) -> bool:
    """Does the cluster's own discovery say that it has no such type? A proxy's 404 must not delete anything."""
    base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    try:
        answer = (await client.request("GET", base, timeout=TIMEOUT)).json()
        if not isinstance(answer, dict) or answer.get("kind") != "APIResourceList":
            return False
        return not any(one.get("name") == resource.resource for one in answer.get("resources") or [])
    except StatusError as error:
        if error.code != 404:
            return False
    try:
        groups = (await client.request("GET", "/apis", timeout=TIMEOUT)).json()
    except StatusError:
        return False
    return isinstance(groups, dict) and groups.get("kind") == "APIGroupList"
