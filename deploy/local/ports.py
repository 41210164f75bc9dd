"""TCP ports for processes that are started, killed and started again.

A port is taken outside the range from which the kernel gives ports to connections, so that none of those
occupies it while its process is down, and is reserved among the fleets of one machine until released.
"""

from __future__ import annotations

import random
import socket
import sys

from deploy.local.errors import FleetFailed

_FIRST, _LAST = 12000, 29999
_HOST = "127.0.0.1"


class NoFreePort(FleetFailed):
    """Nothing free in the range."""


class Ports:
    """Hands out ports on the loopback address and keeps them reserved until `release`."""

    def __init__(self) -> None:
        self._reservations: dict[int, socket.socket | None] = {}

    def take(self, preferred: int = 0) -> int:
        """A free port: `preferred` when it is given and free, else any. Raises NoFreePort."""
        candidates = [preferred] if preferred else []
        candidates += random.sample(range(_FIRST, _LAST + 1), 500)
        for port in candidates:
            if port not in self._reservations and _is_free(port) and self._reserve(port):
                return port
        raise NoFreePort(f"no free port on {_HOST} between {_FIRST} and {_LAST}")

    def _reserve(self, port: int) -> bool:
        if sys.platform != "linux":
            self._reservations[port] = None
            return True
        # An abstract socket's name is a lock that the kernel drops with its owner: no file to clean up.
        marker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            marker.bind(f"\0reclock-fleet-port-{port}")
        except OSError:
            marker.close()
            return False
        self._reservations[port] = marker
        return True

    def release(self) -> None:
        """Gives every port back."""
        for marker in self._reservations.values():
            if marker is not None:
                marker.close()
        self._reservations.clear()


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True
