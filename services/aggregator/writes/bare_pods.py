"""What a bare Pod names and its member lacks: nothing carries it there, so the create says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec

from services.aggregator.types import Aggregated, Call
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.resource import Resource

TIMEOUT = 3.0
MOST = 20  # references that are looked up; a pod with more gets a warning of those
METADATA = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}

CONFIG_MAP = Resource("", "v1", "configmaps", "ConfigMap")
SECRET = Resource("", "v1", "secrets", "Secret")
SERVICE_ACCOUNT = Resource("", "v1", "serviceaccounts", "ServiceAccount")
CLAIM = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")

Reference = tuple[Resource, str]


async def warn_of_missing(
    call: Call, aggregated: Aggregated, client: KubeClient, namespace: str, body: bytes
) -> None:
    """Add a warning that names what the pod needs and the member does not have, with the next step."""
    if aggregated.key != "pods":
        return
    wanted = sorted(set(references(body)), key=lambda one: (one[0].resource, one[1]))[:MOST]
    if not wanted:
        return
    gone = await asyncio.gather(*(_is_missing(client, kind, namespace, name) for kind, name in wanted))
    missing = [f"{kind.kind} {name!r}" for (kind, name), yes in zip(wanted, gone, strict=True) if yes]
    if missing:
        call.warnings.append(
            f"not on cluster {client.name!r}: {', '.join(missing)}; what bare pods name is not carried to members; "
            f"next step: create it there (kubectl --server <this server>/clusters/{client.name}), "
            "or use a Deployment or Job, which take it along"
        )


async def _is_missing(client: KubeClient, kind: Resource, namespace: str, name: str) -> bool:
    try:
        await client.request("GET", kind.path(namespace, name), headers=METADATA, timeout=TIMEOUT)
    except StatusError as error:
        return error.code == 404  # a member that does not answer says so to the create itself
    return False


def references(body: bytes) -> Iterator[Reference]:
    """What a Pod cannot start without: optional references and the default service account are left out."""
    try:
        spec = msgspec.json.decode(body).get("spec")
    except (msgspec.DecodeError, AttributeError):
        return  # no pod: the member says what is wrong with it
    if not isinstance(spec, dict):
        return
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if isinstance(account, str) and account not in ("", "default"):
        yield SERVICE_ACCOUNT, account
    for volume in _dicts(spec, "volumes"):
        yield from _of_volume(volume)
    for group in ("containers", "initContainers"):
        for container in _dicts(spec, group):
            yield from _of_container(container)


def _of_volume(volume: dict[str, Any]) -> Iterator[Reference]:
    yield from _named(CONFIG_MAP, volume.get("configMap"), "name")
    yield from _named(SECRET, volume.get("secret"), "secretName")
    yield from _named(CLAIM, volume.get("persistentVolumeClaim"), "claimName")
    for source in _dicts(volume.get("projected"), "sources"):
        yield from _named(CONFIG_MAP, source.get("configMap"), "name")
        yield from _named(SECRET, source.get("secret"), "name")


def _of_container(container: dict[str, Any]) -> Iterator[Reference]:
    for entry in _dicts(container, "envFrom"):
        yield from _named(CONFIG_MAP, entry.get("configMapRef"), "name")
        yield from _named(SECRET, entry.get("secretRef"), "name")
    for entry in _dicts(container, "env"):
        source = entry.get("valueFrom")
        if isinstance(source, dict):
            yield from _named(CONFIG_MAP, source.get("configMapKeyRef"), "name")
            yield from _named(SECRET, source.get("secretKeyRef"), "name")


def _named(kind: Resource, source: Any, key: str) -> Iterator[Reference]:
    if isinstance(source, dict) and not source.get("optional") and isinstance(source.get(key), str):
        yield kind, source[key]


def _dicts(parent: Any, key: str) -> Iterator[dict[str, Any]]:
    entries = parent.get(key) if isinstance(parent, dict) else None
    yield from (one for one in entries or [] if isinstance(one, dict)) if isinstance(entries, list) else ()
