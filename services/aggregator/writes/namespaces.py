"""Namespaces on members: made when something is placed there; the host's are the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from services.aggregator.types import Aggregated
from services.aggregator.writes.context import WriteContext
from services.common import errors
from services.common.errors import StatusError
from services.common.kube.client import KubeClient, Response
from services.common.kube.resource import NAMESPACES

ORIGIN = "reclock.dev/origin"
HOST_UID = "reclock.dev/host-uid"
FINALIZER = "reclock.dev/members"
ATTEMPTS = 5
PERMANENT = ("default", "kube-system", "kube-public", "kube-node-lease")  # nobody can delete them
NO_SERVICE_ACCOUNT = 'serviceaccount "default" not found'
SERVICE_ACCOUNT_WAIT = 10.0  # seconds: the member's controller makes `default` a moment after the namespace


async def host_namespace_of(
    context: WriteContext, namespace: str, aggregated: Aggregated, name: str
) -> dict[str, Any]:
    """Read the host's namespace that a new object is to be in; 404 where there is none, 403 while it goes."""
    try:
        found: dict[str, Any] = await context.host.get(NAMESPACES, None, namespace)
    except StatusError as error:
        if error.code == 404:
            raise errors.not_found("namespaces", namespace) from error
        raise
    if found["metadata"].get("deletionTimestamp"):
        text = f"namespace {namespace} is being terminated"
        # Controllers look for the cause, and give up instead of trying again.
        cause = {"reason": "NamespaceTerminating", "message": text, "field": "metadata.namespace"}
        raise errors.forbidden(
            f'{aggregated.resource} "{name}" is forbidden: unable to create new content in namespace {namespace} because it is being terminated',
            details={"name": name, "kind": aggregated.resource, "causes": [cause]},
        )
    return found


def lacks_namespace(error: StatusError) -> bool:
    """Whether a member refused an object because its namespace is not there."""
    return error.code == 404 and (error.details or {}).get("kind") == "namespaces"


async def ensure_namespace(context: WriteContext, client: KubeClient, host: dict[str, Any]) -> None:
    """Make the host's namespace on a member. One that is there is used as it is.

    The host's gets a finalizer first, so that deleting it there deletes here.
    """
    host = await _with_finalizer(context, host)
    metadata = host["metadata"]
    copy = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": metadata["name"],
            "labels": {**(metadata.get("labels") or {}), ORIGIN: context.fleet_id},
            "annotations": {HOST_UID: metadata["uid"]},
        },
    }
    try:
        await client.create(NAMESPACES, None, copy)
    except StatusError as error:
        if error.reason != "AlreadyExists":
            raise


async def hold_namespace(context: WriteContext, host: dict[str, Any]) -> dict[str, Any]:
    """Keep the host's namespace, when it is deleted, until what is created in it on members is gone."""
    return host if host["metadata"]["name"] in PERMANENT else await _with_finalizer(context, host)


async def _with_finalizer(context: WriteContext, host: dict[str, Any]) -> dict[str, Any]:
    """Put the finalizer on the host's namespace; again when somebody else changed it meanwhile."""
    name = host["metadata"]["name"]
    for attempt in range(1, ATTEMPTS + 1):
        metadata = host["metadata"]
        if FINALIZER in (metadata.get("finalizers") or []):
            return host
        if metadata.get("deletionTimestamp"):
            raise errors.forbidden(f"namespace {name} is being terminated")
        finalizers = [*(metadata.get("finalizers") or []), FINALIZER]
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
        try:
            patched: dict[str, Any] = await context.host.patch(NAMESPACES, None, name, patch)
            return patched
        except StatusError as error:
            if error.code != 409 or attempt == ATTEMPTS:
                raise
        host = await context.host.get(NAMESPACES, None, name)
    raise AssertionError("unreachable")


async def when_namespace_is_ready(post: Callable[[], Awaitable[Response]]) -> Response:
    """Create in a namespace that was made just now, whose service account is a moment away."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SERVICE_ACCOUNT_WAIT
    while True:
        try:
            return await post()
        except StatusError as error:
            if error.code != 403 or NO_SERVICE_ACCOUNT not in error.message or loop.time() > deadline:
                raise
        await asyncio.sleep(0.05)
