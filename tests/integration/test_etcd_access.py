"""The etcd client where etcd has TLS, users, several members, a quota."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.local.pki import Authority
from services.common import etcd_admin
from services.common.config import ConfigError
from services.common.etcd import Etcd, EtcdDenied, EtcdFull, EtcdLogin, EtcdTls, EtcdUnavailable, op_put
from tests.integration.etcd_access import Secured, enable_users
from tests.integration.etcd_cluster import EtcdCluster
from tests.integration.etcd_server import EtcdServer, find_etcd


@pytest.fixture
def binary() -> str:
    found = find_etcd()
    if found is None:
        pytest.skip("no etcd binary: run `make kube`")
    return found


@pytest_asyncio.fixture
async def secured(binary: str, tmp_path: Path) -> AsyncIterator[Secured]:
    one = Secured(binary, tmp_path)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()


async def answered(client: Etcd) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await client.status()
            except EtcdUnavailable:
                await asyncio.sleep(0.1)
            else:
                return


async def test_certificates_are_asked_for_and_checked(secured: Secured, tmp_path: Path) -> None:
    client = Etcd.connect([secured.url], secured.tls())
    await answered(client)
    await client.put(b"a", b"1")
    await client.close()
    strange = Authority(tmp_path / "strange", "another-ca")
    for tls in (
        EtcdTls(ca=str(secured.authority.pair.cert)),
        EtcdTls(ca=str(strange.pair.cert)),
        secured.tls(strange.client("root", ())),
    ):
        client = Etcd.connect([secured.url], tls, timeout=1.5)
        with pytest.raises(EtcdUnavailable):
            await client.put(b"a", b"2")
        await client.close()


def test_wrong_access_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.pem: No such file"):
        Etcd.connect(["https://127.0.0.1:1"], EtcdTls(ca=str(tmp_path / "nowhere.pem")))
    with pytest.raises(ConfigError, match="use https://"):
        Etcd.connect(["http://10.0.0.1:2379"])
    with pytest.raises(ValueError, match="cert and key go together"):
        EtcdTls(cert="a")
    with pytest.raises(ValueError, match="user and passwordFile go together"):
        EtcdLogin(user="a")


async def test_users_and_passwords(etcd: EtcdServer, tmp_path: Path) -> None:
    admin = Etcd.connect([etcd.endpoint])
    await enable_users(admin)
    with pytest.raises(EtcdDenied):
        await admin.put(b"/reclock/a", b"1")
    password = tmp_path / "password"
    password.write_text("wrong\n")
    client = Etcd.connect([etcd.endpoint], login=EtcdLogin(user="reclock", password_file=str(password)))
    with pytest.raises(EtcdDenied, match="authentication failed"):
        await client.put(b"/reclock/a", b"1")
    password.write_text("first\n")
    revision = await client.put(b"/reclock/a", b"1")
    with pytest.raises(EtcdDenied, match="permission denied"):
        await client.put(b"/else", b"1")
    lease = await client.lease_grant(30)
    assert await client.lease_keepalive(lease) > 0
    watch = client.watch(b"/reclock/", prefix=True, start_revision=revision)
    while not (batch := await anext(watch)).events:
        pass
    assert batch.events[0].kv.value == b"1"
    await watch.aclose()
    # Tokens of etcd's simple kind are gone after its restart: a new login, nothing is lost.
    etcd.kill()
    await etcd.start()
    await answered(client)
    await client.txn((), [op_put(b"/reclock/b", b"1")])
    await admin.close()
    await client.close()


@pytest_asyncio.fixture
async def three(binary: str, tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    cluster = EtcdCluster(binary, tmp_path / "three")
    await cluster.start()
    try:
        yield cluster
    finally:
        cluster.close()


async def test_calls_and_watches_leave_a_member_that_hangs(three: EtcdCluster) -> None:
    client = Etcd.connect(three.endpoints, timeout=3)
    await client.put(b"a", b"0")
    watch = client.watch(b"a")
    await anext(watch)
    three.pause(0)
    with pytest.raises(EtcdUnavailable):
        await client.put(b"a", b"1")  # sent, no answer: not repeated by the client
    began = asyncio.get_running_loop().time()
    while True:
        try:
            await client.put(b"a", b"2")
        except EtcdUnavailable:
            continue  # it led, and the others elect
        break
    with pytest.raises(EtcdUnavailable):
        while True:
            await anext(watch)
    assert asyncio.get_running_loop().time() - began < 45, "a watch of a hanging member is left, not kept for a minute"
    three.resume(0)
    await client.close()


async def test_a_write_that_no_connection_was_made_for_goes_elsewhere(three: EtcdCluster) -> None:
    # Not the leader: without one a write waits for the election, wherever it goes.
    victim = (await three.leader() + 1) % 3
    three.kill(victim)
    others = [at for at in range(3) if at != victim]
    client = Etcd.connect([three.endpoints[at] for at in (victim, *others)])
    await client.put(b"a", b"1")
    await client.close()


async def test_defragmentation_goes_one_by_one_the_leader_last(three: EtcdCluster) -> None:
    client = Etcd.connect(three.endpoints)
    for number in range(300):
        await client.put(b"k%d" % number, bytes(10_000))
    await client.delete(b"k", prefix=True)
    await client.compact((await client.range(b"k")).revision)
    leader = await three.leader()
    order = [(before, after) async for before, after in etcd_admin.defragment(client)]
    assert [before.address for before, _ in order][-1] == three.endpoints[leader] and len(order) == 3
    assert all(after.size < before.size for before, after in order)
    three.kill((leader + 1) % 3)
    with pytest.raises(EtcdUnavailable, match="not healthy"):
        async for _ in etcd_admin.defragment(client):
            raise AssertionError("with one member away another was taken out of service")
    await client.close()


async def test_a_full_etcd_recovers_when_it_is_cleared(binary: str, tmp_path: Path) -> None:
    cluster = EtcdCluster(binary, tmp_path / "small", 1, ["--quota-backend-bytes", "2000000"])
    await cluster.start()
    client = Etcd.connect(cluster.endpoints)
    try:
        with pytest.raises(EtcdFull):
            for number in range(1000):
                await client.put(b"k%d" % number, bytes(10_000))
        assert list(await etcd_admin.alarms(client)) == ["NOSPACE"]
        await client.delete(b"k", prefix=True)
        await client.compact((await client.range(b"k")).revision, physical=True)
        [pair] = [pair async for pair in etcd_admin.defragment(client)]
        assert pair[1].size < pair[0].size
        assert len(await etcd_admin.disarm(client)) == 1
        await client.put(b"k", b"1")
    finally:
        await client.close()
        cluster.close()
