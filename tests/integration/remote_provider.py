"""A ClusterProvider as a process of its own: sends the kubeconfigs of a folder. `python -m … ADDRESS FOLDER [HOW]`.

HOW is `repeats`: everything is sent again and again; or `contradicts`: each set has west twice, with different labels.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from reclock.discovery.v1 import discovery_pb2 as pb
from reclock.discovery.v1 import discovery_pb2_grpc
from services.common.grpc import GrpcServer


class Provider(discovery_pb2_grpc.ClusterProviderServiceServicer):
    """Provides what is in the folder when a stream begins."""

    def __init__(self, folder: Path, how: str) -> None:
        self._folder, self._how = folder, how

    async def ProvideClusters(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The complete set, and what HOW says."""
        found = [
            pb.ProvideClustersResponse.Found(name=file.stem, kubeconfig=file.read_bytes(), labels={"from": "afar"})
            for file in sorted(self._folder.glob("*.kubeconfig"))
        ]
        if self._how == "contradicts":
            found.append(pb.ProvideClustersResponse.Found(name="west", kubeconfig=found[-1].kubeconfig, labels={"from": "else"}))
        for one in found:
            yield pb.ProvideClustersResponse(found=one)
        yield pb.ProvideClustersResponse(synced=True)
        while self._how == "repeats":
            for one in found:
                yield pb.ProvideClustersResponse(found=one)
            yield pb.ProvideClustersResponse(synced=True)
            await asyncio.sleep(0.01)
        await asyncio.Event().wait()


async def main(address: str, folder: str, how: str = "") -> None:
    """Serve until killed."""
    server = GrpcServer(address)
    register = discovery_pb2_grpc.add_ClusterProviderServiceServicer_to_server
    server.add(register, Provider(Path(folder), how), "reclock.discovery.v1.ClusterProviderService")
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
