"""Simulated Kubernetes clusters: any number in one process, faithful where clients look, faulty on request.

Pure and synchronous (`World`, `Cluster`); `server` puts them on HTTP.
"""

from __future__ import annotations

from deploy.local.sim.cluster import Cluster
from deploy.local.sim.deletes import Options as DeleteOptions
from deploy.local.sim.errors import Refused
from deploy.local.sim.faults import Faults, Rule
from deploy.local.sim.requests import ADMIN, Request, Response, StreamResponse, WatchResponse
from deploy.local.sim.timers import VirtualClock
from deploy.local.sim.world import World

__all__ = [
    "ADMIN", "Cluster", "DeleteOptions", "Faults", "Refused", "Request", "Response", "Rule", "StreamResponse",
    "VirtualClock", "WatchResponse", "World",
]  # fmt: skip
