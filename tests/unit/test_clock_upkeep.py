"""What the state of etcd's endpoints means for readiness and for writes."""

from __future__ import annotations

import pytest

from services.aggregator.clock import upkeep as module
from services.aggregator.clock.upkeep import Upkeep
from services.common.etcd import Etcd
from services.common.etcd_admin import EndpointState

WELL = EndpointState("a:1", 1, "3.6", 100, 50, leader=True)
AWAY = EndpointState("b:1", problem="etcd: Status: connection refused")
DENIED = EndpointState("c:1", problem="etcd: Status: permission denied", denied=True)
FULL = EndpointState("d:1", 4, "3.6", 100, 50, alarms=("NOSPACE",))
CORRUPT = EndpointState("e:1", 5, "3.6", 100, 50, alarms=("CORRUPT",))


@pytest.mark.parametrize(
    ("endpoints", "ready", "writes"),
    [
        ([WELL, AWAY], "", ""),
        ([DENIED], "", ""),
        ([AWAY], "", "etcd does not answer"),
        ([WELL, FULL], "defragment", "etcd is full"),
        ([CORRUPT], "alarm CORRUPT on e:1", "corrupt"),
    ],
)
async def test_what_endpoints_mean(
    monkeypatch: pytest.MonkeyPatch, endpoints: list[EndpointState], ready: str, writes: str
) -> None:
    async def told(_: Etcd) -> list[EndpointState]:
        return endpoints

    monkeypatch.setattr(module, "states", told)
    one = Upkeep(Etcd([], 1.0))
    assert one.refuses() is None, "nobody has looked yet"
    await one.look()
    assert bool(one.ready()) == bool(ready) and ready in (one.ready() or "")
    assert bool(one.refuses()) == bool(writes) and writes in (one.refuses() or "")
