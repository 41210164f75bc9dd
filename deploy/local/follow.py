"""Starts a client anew when the service that it works at is back after a while.

A client-go informer that cannot connect waits longer after each try, 30 to 60 s from the fifth on; no flag of
kube-controller-manager changes that, and rollouts stood still for as long. A new process connects at once.
"""

from __future__ import annotations

import asyncio
import logging
import time

from deploy.local.errors import FleetFailed
from deploy.local.process import Process

log = logging.getLogger(__name__)

EVERY = 1.0
PATIENCE = 5.0
"""Seconds after which the client's own next try is too far away."""


async def follow(service: Process, client: Process) -> None:
    """Watch `service` until cancelled. A client that is stopped stays so."""
    away_since: float | None = None
    while True:
        ready = service.running and (service.ready is None or await service.ready() is None)
        if not ready:
            away_since = time.monotonic() if away_since is None else away_since
        elif away_since is not None:
            if time.monotonic() - away_since > PATIENCE and client.running:
                try:
                    await client.restart()
                except FleetFailed as error:
                    log.error("%s, started anew for %s: %s", client.name, service.name, error)
            away_since = None
        await asyncio.sleep(EVERY)
