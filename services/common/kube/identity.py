"""Which cluster it is that answers: the uid of its kube-system (of the namespace or workspace that is the cluster)."""

from __future__ import annotations

from services.common.errors import MemberUnreachable
from services.common.kube.client import KubeClient

LIMIT = 5.0


async def identity(client: KubeClient, timeout: float = LIMIT) -> str:
    """The uid; StatusError when the cluster does not tell it."""
    answer = (await client.request("GET", client.shape.identity_path, timeout=timeout)).json()
    found = (answer.get("metadata") or {}).get("uid") if isinstance(answer, dict) else None
    if not isinstance(found, str) or not found:
        raise MemberUnreachable(f"{client.label}: it does not say which cluster it is")
    return found


async def expect(client: KubeClient, uid: str, timeout: float = LIMIT) -> None:
    """MemberUnreachable unless the cluster of this uid answers."""
    found = await identity(client, timeout)
    if found != uid:
        wanted = f"not the one that is meant (uid {uid})" if uid else "and which one is meant is not known yet"
        raise MemberUnreachable(f"{client.label}: a cluster of uid {found} answers, {wanted}")
