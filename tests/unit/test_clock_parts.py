"""Small parts of the clock on their own: restores, identities, the shared read, selection."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from _fastpath.marker import Marker
from services.aggregator.clock import election
from services.aggregator.clock.barrier import Shared
from services.aggregator.clock.election import LeaseKeeper
from services.aggregator.clock.membership import selected
from services.aggregator.clock.position import Position
from services.aggregator.clock.restore import differs_at_read, differs_at_resume
from services.aggregator.clock.state import Change, State
from services.aggregator.types import HOST, Aggregated
from services.common.etcd import EtcdError
from services.common.fleet import Member

LIFE = "00000000-0000-4000-8000-000000000001/0"


def at(name: str, version: int, uid: int = 1, *, deleted: bool = False) -> Marker:
    text = f"00000000-0000-4000-9000-{uid:012d}"
    return Marker("east", LIFE, "ns", name, text, version, {}, deleted=deleted)


def marked(*markers: Marker) -> tuple[State, list[Marker]]:
    state = State(1000, 1)
    state.apply(Change(2, list(enumerate(markers))))
    return state, [one for one in markers if not one.deleted]


CLOSED = Position(LIFE, 20, 20)
OPEN = Position(LIFE, 20, 19)


@pytest.mark.parametrize(
    ("position", "live", "listed", "restored"),
    [
        (CLOSED, [at("a", 10)], [at("a", 10)], False),
        (CLOSED, [at("a", 10)], [at("a", 10, uid=2)], True),
        (CLOSED, [at("a", 10)], [at("a", 9)], True),
        (CLOSED, [at("a", 10)], [], True),
        (CLOSED, [], [at("a", 10)], True),
        (OPEN, [at("a", 10)], [], False),
        (OPEN, [at("a", 20)], [], True),
        (OPEN, [at("a", 10)], [at("a", 10), at("b", 11)], True),
    ],
)
def test_a_restore_seen_at_read(
    position: Position, live: list[Marker], listed: list[Marker], restored: bool
) -> None:
    assert differs_at_read(position, live, listed) is restored


@pytest.mark.parametrize(
    ("markers", "listed", "restored"),
    [
        ([at("a", 10), at("b", 20, deleted=True)], [at("a", 10), at("b", 11)], False),
        ([at("a", 10), at("b", 20)], [at("a", 10), at("b", 11)], False),
        ([at("a", 10), at("b", 20)], [at("a", 10)], False),
        ([at("a", 10)], [], True),
        ([at("a", 10)], [at("a", 10, uid=2)], True),
        ([at("a", 10)], [at("a", 10), at("b", 11)], True),
        ([at("a", 10), at("b", 15, deleted=True)], [at("a", 10), at("b", 11)], True),
    ],
)
def test_a_restore_seen_at_resume(markers: list[Marker], listed: list[Marker], restored: bool) -> None:
    state, live = marked(*markers)
    assert differs_at_resume(state, OPEN, "east", live, listed) is restored


def test_only_the_key_of_a_dead_process_of_this_machine_is_taken() -> None:
    me = election.identity()
    assert not election.is_dead(me)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        start = election.process_start(child.pid)
        theirs = f"{election.machine()} {child.pid} {start} abcd"
        assert not election.is_dead(theirs)
        assert election.is_dead(f"{election.machine()} {child.pid} {int(start) - 1} abcd"), "a reused pid"
        assert not election.is_dead(f"elsewhere/boot/pid {child.pid} 1 abcd")
    finally:
        child.kill()
        child.communicate()
    assert election.is_dead(theirs)
    for garbage in ("", "x", "a b c d", f"{election.machine()} x 1 abcd", str(os.getpid())):
        assert not election.is_dead(garbage)


async def test_a_shared_read_began_after_everyone_that_shares_it_asked() -> None:
    begun = 0
    gates: list[asyncio.Event] = []

    async def read() -> int:
        nonlocal begun
        begun += 1
        gates.append(asyncio.Event())
        number = begun
        await gates[-1].wait()
        return number

    shared = Shared(read)
    first = asyncio.create_task(shared.get())
    await asyncio.sleep(0.01)
    late = [asyncio.create_task(shared.get()) for _ in range(5)]
    await asyncio.sleep(0.01)
    late[0].cancel()
    gates[0].set()
    assert await first == 1
    await asyncio.sleep(0.01)
    gates[1].set()
    assert await asyncio.gather(*late[1:]) == [2] * 4
    assert begun == 2


async def test_an_error_reaches_all_who_share_it_and_the_next_call_is_fresh() -> None:
    answers: list[object] = [ValueError("x"), 7]

    async def read() -> object:
        await asyncio.sleep(0)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shared = Shared(read)
    with pytest.raises(ValueError):
        await shared.get()
    assert await shared.get() == 7


def test_selected_clusters() -> None:
    members = {
        name: Member(name, labels={"region": region}) for name, region in (("east", "us"), ("west", "eu"))
    }
    fleet = SimpleNamespace(members=members)
    pods = Aggregated("pods", "", "v1", "pods", "Pod", True)
    assert set(selected(pods, fleet)) == {"east", "west"}  # type: ignore[arg-type]
    some = Aggregated("pods", "", "v1", "pods", "Pod", True, cluster_selector="region=eu", include_host=True)
    assert selected(some, fleet) == {"west": members["west"], HOST: None}  # type: ignore[arg-type]


async def test_the_lease_is_renewed_on_after_any_error_of_etcd() -> None:
    renewed: list[int] = []

    async def keepalive(lease: int, timeout: float) -> int:
        renewed.append(lease)
        if len(renewed) == 1:
            raise EtcdError("etcd: LeaseKeepAlive: resource exhausted")
        return 6

    async def grant(ttl: int) -> int:
        return 7

    async def revoke(lease: int) -> None:
        return None

    etcd = SimpleNamespace(lease_keepalive=keepalive, lease_grant=grant, lease_revoke=revoke)
    keeper = LeaseKeeper(SimpleNamespace(etcd=etcd), ttl=0)  # type: ignore[arg-type]
    await keeper.get()
    task = asyncio.create_task(keeper.run())
    for _ in range(50):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(renewed) > 1 and set(renewed) == {7}


async def test_who_finds_the_lease_gone_says_so_for_every_term() -> None:
    """The next lease says nothing of the keys that went with this one: a term of it must not seem certain."""
    leases = iter((7, 8))

    async def grant(ttl: int) -> int:
        return next(leases)

    keeper = LeaseKeeper(SimpleNamespace(etcd=SimpleNamespace(lease_grant=grant)), ttl=2)  # type: ignore[arg-type]
    told: list[bool] = []
    keeper.on_gone = lambda: told.append(keeper.certain)
    assert await keeper.get() == 7 and keeper.certain
    keeper.forget(7)
    keeper.forget(7)
    assert told == [False], "told once, and while nothing is certain"
    assert await keeper.get() == 8 and keeper.certain
    keeper.forget(7)
    assert keeper.certain, "an old lease's end is no news"
