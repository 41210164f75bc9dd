"""For unit tests of controllers: a controller service and a fleet that are real servers in this process, on port 0.

    async def test_copies() -> None:
        async with World(copier, clusters=["east", "west"]) as world:
            world.fleet["east"].put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "x"}})
            done = await world.reconcile("east", "x", "a")
            assert done.ok
            assert world.fleet["west"].get("v1/configmaps", "a", "x")
"""

from reclock.testing._fleet import FakeCluster, FakeFleet
from reclock.testing._service import Done, FakeService, Stream
from reclock.testing._world import World

__all__ = ["Done", "FakeCluster", "FakeFleet", "FakeService", "Stream", "World"]
