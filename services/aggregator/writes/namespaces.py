"""Namespaces on members: made when something is placed there; the host's are the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from services.aggregator.writes.context import WriteContext
from services.common.errors import StatusError
from services.common.kube.client import KubeClient, Response
from services.common.kube.resource import NAMESPACES

ORIGIN = "reclock.dev/origin"
HOST_UID = "reclock.dev/host-uid"
FINALIZER = "reclock.dev/members"
SERVICE_ACCOUNT_WAIT = 10.0  # seconds: the member's controller makes `default` a moment after the namespace


async def ensure_namespace(context: WriteContext, client: KubeClient, name: str) -> bool:
    """Make the namespace on a member if it is not there; True when it was made just now.

    An existing one is used as it is. The host's gets a finalizer first, so that deleting it there deletes here.
    """
    try:
        await client.get(NAMESPACES, None, name)
    except StatusError as error:
        if error.code != 404:
            raise
    else:
        return False
    host = await context.host.get(NAMESPACES, None, name)
    metadata = host["metadata"]
    if FINALIZER not in (metadata.get("finalizers") or []):
        finalizers = [*(metadata.get("finalizers") or []), FINALIZER]
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
        await context.host.patch(NAMESPACES, None, name, patch)
    copy = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {**(metadata.get("labels") or {}), ORIGIN: context.fleet_id},
            "annotations": {HOST_UID: metadata["uid"]},
        },
    }
    try:
        await client.create(NAMESPACES, None, copy)
    except StatusError as error:
        if error.reason != "AlreadyExists":
            raise
    return True


async def post_when_namespace_is_ready(
    post: Callable[[], Awaitable[Response]], *, just_made: bool
) -> Response:
    """Create in a namespace whose service account may be a moment away."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (SERVICE_ACCOUNT_WAIT if just_made else 1.0)
    while True:
        try:
            return await post()
        except StatusError as error:
            if error.code != 403 or "serviceaccount" not in error.message or loop.time() > deadline:
                raise
        await asyncio.sleep(0.05)
