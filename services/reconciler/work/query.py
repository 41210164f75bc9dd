"""`QueryIndex`: this replica's part, and the others' put together."""

from __future__ import annotations

import base64
import binascii

import msgspec

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.common.errors import StatusError
from services.reconciler.work.hub import Hub
from services.reconciler.work.index import Ref
from services.reconciler.work.peers import Peers
from services.reconciler.work.spec import BadRegister

LIMIT = 10_000


async def query(hub: Hub, peers: Peers, request: pb.QueryIndexRequest) -> pb.QueryIndexResponse:
    """Objects in order, from the page token on. StatusError 404, BadRegister for bad fields."""
    if not 0 <= request.limit <= LIMIT:
        raise BadRegister([("limit", f"{request.limit}: allowed is 0 to {LIMIT}")])
    after = _decode(request.page_token)
    answers = [] if request.this_replica else await peers.query(request)
    here = _here(hub, request)
    others = [answer for answer in answers if isinstance(answer, pb.QueryIndexResponse)]
    if here is None and not others:
        raise _not_found(hub, request)
    objects = list(here or ())
    missing = set() if here is None else _unread(hub, request)
    for answer in others:
        objects += [Ref(each.cluster, each.namespace, each.name, each.source, each.uid) for each in answer.objects]
        missing |= set(answer.missing_clusters)
    for name in answers:
        if isinstance(name, str):
            missing |= peers.clusters_of(name)
    limit = request.limit or LIMIT
    found = sorted(ref for ref in objects if after is None or ref > after)
    token = _encode(found[limit - 1]) if len(found) > limit else ""
    return pb.QueryIndexResponse(
        objects=[
            pb.IndexedObject(cluster=ref.cluster, namespace=ref.namespace, name=ref.name, source=ref.source, uid=ref.uid)
            for ref in found[:limit]
        ],
        next_page_token=token, missing_clusters=sorted(missing),
    )  # fmt: skip


def _here(hub: Hub, request: pb.QueryIndexRequest) -> list[Ref] | None:
    controller = hub.controllers.get(request.controller)
    if controller is None or request.index not in controller.indexes.names:
        return None
    found = controller.indexes.find(request.index, request.value)
    return [ref for ref in found if not request.HasField("cluster") or ref.cluster == request.cluster]


def _unread(hub: Hub, request: pb.QueryIndexRequest) -> set[str]:
    parts = hub.controllers[request.controller].parts
    wanted = {request.cluster} & set(parts) if request.HasField("cluster") else set(parts)
    return {cluster for cluster in wanted if not parts[cluster].synced}


def _not_found(hub: Hub, request: pb.QueryIndexRequest) -> StatusError:
    controller = hub.controllers.get(request.controller)
    if controller is None:
        return StatusError(404, "NotFound", f"there is no controller {request.controller!r}")
    names = ", ".join(controller.indexes.names)
    return StatusError(404, "NotFound", f"controller {request.controller!r} has no index {request.index!r}; it has: {names}")


def _encode(ref: Ref) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(tuple(ref))).decode()


def _decode(token: str) -> Ref | None:
    if not token:
        return None
    try:
        return Ref(*msgspec.json.decode(base64.urlsafe_b64decode(token), type=tuple[str, str, str, str, str]))
    except (binascii.Error, msgspec.DecodeError, ValueError):
        raise BadRegister([("page_token", "it is not one of ours")]) from None
