"""The writes as the front calls them: one handler per verb."""

from __future__ import annotations

from aiohttp import web

from services.aggregator.types import Aggregated, Call
from services.aggregator.writes import collection, create, delete, patch, subresource, update
from services.aggregator.writes.context import WriteContext


class Writes:
    """Writes of aggregated objects. Stateless: everything is in the members, the log and the claims."""

    def __init__(self, context: WriteContext) -> None:
        self._context = context

    async def create(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """POST to the collection."""
        return await create.create(self._context, call, aggregated)

    async def update(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """PUT."""
        return await update.update(self._context, call, aggregated)

    async def patch(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """PATCH, all four types."""
        return await patch.patch(self._context, call, aggregated)

    async def delete(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """DELETE of one object."""
        return await delete.delete(self._context, call, aggregated)

    async def deletecollection(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """DELETE of a collection."""
        return await collection.delete_collection(self._context, call, aggregated)

    async def subresource(self, call: Call, aggregated: Aggregated) -> web.StreamResponse:
        """Any method on a subresource that is no tunnel."""
        return await subresource.subresource(self._context, call, aggregated)
