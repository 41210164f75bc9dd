"""What integration tests share: a real etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.etcd_server import EtcdServer, find_etcd


@pytest_asyncio.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdServer]:
    """An etcd of the test's own, empty."""
    binary = find_etcd()
    if binary is None:
        pytest.skip("no etcd binary: run `make kube`")
    server = EtcdServer(binary, tmp_path / "etcd")
    await server.start()
    try:
        yield server
    finally:
        server.kill()
