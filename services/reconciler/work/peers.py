"""The other replicas, as this one's servicers see them."""

from __future__ import annotations

from typing import Protocol

import grpc

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.reconciler.work.session import Session


class Peers(Protocol):
    """Other replicas. A name in an answer is a replica that did not answer."""

    def serve(self, session: Session) -> None:
        """Let the other replicas serve a worker too, those that come later included."""

    def leave(self, session: Session) -> None:
        """A worker is gone; its desks are closed by others."""

    def ownerless(self, cluster: str) -> bool:
        """Whether a cluster's replica is gone and none has followed yet."""

    def is_peer(self, context: grpc.aio.ServicerContext) -> bool:
        """Whether another replica calls."""

    def clusters_of(self, replica: str) -> set[str]:
        """Clusters that a replica owns, as far as is known."""

    async def query(self, request: pb.QueryIndexRequest) -> list[pb.QueryIndexResponse | str]:
        """What each of them says to QueryIndex; those that have no such controller are left out."""

    async def list_queues(self, request: pb.ListQueuesRequest) -> list[pb.ListQueuesResponse | str]:
        """What each of them says to ListQueues."""

    async def update_queue(self, request: pb.UpdateQueueRequest) -> int:
        """How many of them have what UpdateQueue names; raises what one of them refuses."""


class NoPeers:
    """One replica."""

    def serve(self, session: Session) -> None:
        """See Peers."""

    def leave(self, session: Session) -> None:
        """See Peers."""

    def ownerless(self, cluster: str) -> bool:
        """See Peers."""
        return False

    def is_peer(self, context: grpc.aio.ServicerContext) -> bool:
        """See Peers."""
        return False

    def clusters_of(self, replica: str) -> set[str]:
        """See Peers."""
        return set()

    async def query(self, request: pb.QueryIndexRequest) -> list[pb.QueryIndexResponse | str]:
        """See Peers."""
        return []

    async def list_queues(self, request: pb.ListQueuesRequest) -> list[pb.ListQueuesResponse | str]:
        """See Peers."""
        return []

    async def update_queue(self, request: pb.UpdateQueueRequest) -> int:
        """See Peers."""
        return 0
