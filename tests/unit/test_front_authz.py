"""What the front remembers of access reviews."""

from __future__ import annotations

from typing import Any

from services.aggregator.front.authz import Attributes, Authorizer
from services.common.kube.reviews import User


class Host:
    """Allows everything, and counts."""

    asked = 0

    async def create(self, *args: Any) -> dict[str, Any]:
        self.asked += 1
        return {"status": {"allowed": True}}


async def test_reviews_are_remembered_unless_what_is_asked_is_of_any_length() -> None:
    host = Host()
    authorizer = Authorizer(host)  # type: ignore[arg-type]
    for path, asked in (("/metrics", 1), ("/" + "x" * 60_000, 3)):
        for _ in range(2):
            await authorizer.require(User("alice"), Attributes("get", path))
        assert host.asked == asked
    assert len(authorizer._cache._values) == 1
