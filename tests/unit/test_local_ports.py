"""Ports of the local fleet: reserved among fleets, outside the kernel's own range."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from deploy.local.ports import Ports


def test_ports_differ_and_lie_below_the_kernels_range() -> None:
    ports = Ports()
    taken = [ports.take() for _ in range(50)]
    assert len(set(taken)) == 50
    if sys.platform == "linux":
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert max(taken) < max(first, 30000)
    ports.release()


def test_a_preferred_port_is_given_once() -> None:
    ports = Ports()
    wanted = ports.take()
    ports.release()
    assert ports.take(wanted) == wanted
    assert ports.take(wanted) != wanted
    ports.release()


@pytest.mark.skipif(
    sys.platform != "linux", reason="abstract sockets, by which fleets see each other, are Linux's"
)
def test_a_port_reserved_by_another_fleet_is_not_taken() -> None:
    one, other = Ports(), Ports()
    port = one.take()
    assert other.take(port) != port
    one.release()
    assert other.take(port) == port
    other.release()


def test_a_port_in_use_is_not_taken() -> None:
    ports = Ports()
    free = ports.take()
    ports.release()
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", free))
        busy.listen()
        assert ports.take(free) != free
    ports.release()
