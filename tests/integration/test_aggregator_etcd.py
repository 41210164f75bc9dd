"""An aggregator as a process on an etcd that asks for a client's certificate, and then for user and password too:
served, killed and started again; with what etcd does not take, the reason is said where people look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
import yaml

from deploy.local.api import Api
from deploy.local.engines import SIM
from deploy.local.fleet import Fleet
from deploy.local.pki import Authority
from deploy.local.process import Process
from services.common.etcd import Etcd, EtcdTls
from tests.integration.etcd_access import Secured, enable_users
from tests.integration.etcd_server import find_etcd, free_port
from tests.integration.sim_rig import pod

PODS = "/api/v1/namespaces/default/pods"


class Aggregator:
    """One more aggregator of a simulated fleet, with its markers on the secured etcd."""

    def __init__(self, fleet: Fleet, secured: Secured, folder: Path) -> None:
        assert fleet.services is not None
        self.secured = secured
        self._config = yaml.safe_load((fleet.layout.state("reclock") / "aggregator.yaml").read_text())
        self._http, front, grpc = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self._config |= {"grpcAddress": grpc, "httpAddress": self._http, "frontAddress": front, "userAddress": "", "stateFile": ""}
        self._file = folder / "aggregator.yaml"
        self.access = replace(fleet.services.front_access(), server=f"https://{front}")
        self.process = Process(
            "secured-aggregator", [*fleet.processes["aggregator"].command[:3], "--config", str(self._file)],
            log=folder / "aggregator.log", env=fleet.processes["aggregator"].env, cwd=Path(__file__).parents[2],
        )  # fmt: skip

    async def start(self, tls: EtcdTls, **login: str) -> None:
        """Start it anew, kill -9 before."""
        await self.process.kill9()
        place: dict[str, Any] = {"endpoints": [self.secured.url], "tls": msgspec.to_builtins(tls)}
        self._file.write_text(yaml.safe_dump({**self._config, "etcd": {**place, **({"login": login} if login else {})}}))
        await self.process.start()

    async def ready(self) -> str:
        """What /readyz says; "" while nobody answers."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://{self._http}/readyz?verbose") as answer:
                return f"{answer.status} {await answer.text()}"
        except aiohttp.ClientError:
            return ""

    async def refuses(self, *words: str) -> None:
        """It is not ready, and says why there and in its log."""
        await self._until(lambda told: told.startswith("5") and all(word in told for word in words))
        assert all(word in self.process.log.read_text() for word in words)

    async def serves(self) -> list[tuple[str, str]]:
        """Names and versions of the pods that the front shows, once it is ready."""

        await self._until(lambda told: told.startswith("200"))
        items = (await Api(self.access).request("GET", PODS))["items"]
        return [(one["metadata"]["name"], one["metadata"]["resourceVersion"]) for one in items]

    async def _until(self, is_so: Callable[[str], bool]) -> None:
        told = ""
        try:
            async with asyncio.timeout(60):
                while not is_so(told := await self.ready()):
                    assert self.process.running, self.process.log_tail()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{told}\n{self.process.log_tail()}") from None


@pytest_asyncio.fixture
async def aggregator(tmp_path: Path) -> AsyncIterator[Aggregator]:
    binary = find_etcd()
    if binary is None:
        pytest.skip("no etcd binary: run `make kube`")
    secured = Secured(binary, tmp_path)
    try:
        async with Fleet.start(tmp_path / "fleet", members=["east"], services=True, placement=False, engine=SIM) as fleet:
            await fleet.members["east"].api.create(pod("a"))
            one = Aggregator(fleet, secured, tmp_path)
            try:
                yield one
            finally:
                await one.process.kill9()
    finally:
        secured.process.kill()
        secured.process.wait()


async def test_an_etcd_with_certificates_then_with_users_too(aggregator: Aggregator, tmp_path: Path) -> None:
    secured, strange = aggregator.secured, Authority(tmp_path / "strange", "another-ca")
    tls = secured.tls()
    await aggregator.start(EtcdTls(ca=str(strange.pair.cert), cert=tls.cert, key=tls.key))
    await aggregator.refuses("etcd: ", "CERTIFICATE_VERIFY_FAILED")
    await aggregator.start(secured.tls(strange.client("nobody")))
    await aggregator.refuses("etcd: ", secured.url.removeprefix("https://"))
    await aggregator.start(tls)
    shown = await aggregator.serves()
    assert [name for name, _ in shown] == ["a"]
    await aggregator.start(tls)
    assert await aggregator.serves() == shown, "the same versions after kill -9"

    admin = Etcd.connect([secured.url], tls)
    await enable_users(admin)
    await admin.close()
    await aggregator.start(tls)
    await aggregator.refuses("etcd: ", "permission denied")
    password = tmp_path / "password"
    password.write_text("wrong\n")
    login = {"user": "reclock", "passwordFile": str(password)}
    await aggregator.start(tls, **login)
    await aggregator.refuses("etcd: ", "authentication failed")
    password.write_text("first\n")  # it is read anew: no restart is needed
    assert await aggregator.serves() == shown
    await aggregator.start(tls, **login)
    assert await aggregator.serves() == shown
