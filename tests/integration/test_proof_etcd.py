"""The etcd in memory, on which the proof runs, answers as a real one does."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from services.common.etcd import Etcd
from tests.integration.etcd_server import EtcdServer
from tests.proof.etcd_suite import CASES, Case
from tests.proof.virtual.etcd import EtcdStore
from tests.proof.virtual.link import Link
from tests.proof.virtual.loop import VirtualLoop


def in_memory(case: Case) -> Any:
    loop = VirtualLoop()

    async def run() -> Any:
        return await case(Etcd([Link(EtcdStore(loop), random.Random(1))], 5.0))  # type: ignore[list-item]

    try:
        return loop.run_until_complete(asyncio.wait_for(run(), 60))
    finally:
        loop.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_etcd_in_memory_answers_as_a_real_one(case: Case, etcd: EtcdServer) -> None:
    client = Etcd.connect([etcd.endpoint])
    try:
        real = await case(client)
    finally:
        await client.close()
    virtual = await asyncio.to_thread(in_memory, case)
    assert virtual == real
