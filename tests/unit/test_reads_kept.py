"""What is kept and asked for early between the pages of a walk, and that nothing depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from reads_fake import Fleet, fleet_of, pod, status

from services.aggregator.reads import kept
from services.common.errors import MemberUnreachable

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PODS = "/api/v1/pods"


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with fleet_of("east", "west") as fleet:
        yield fleet


def fill(fleet: Fleet, count: int, share: int = 2) -> list[str]:
    """`count` pods, one in `share` of them on west."""
    for i in range(count):
        fleet.write("east" if i % share else "west", pod(f"p{i:03d}"))
    return [f"p{i:03d}" for i in range(count)]


def names(body: dict[str, Any]) -> list[str]:
    objects = body["items"] if "items" in body else [row["object"] for row in body["rows"]]
    return [one["metadata"]["name"] for one in objects]


async def page(fleet: Fleet, token: str = "", query: str = "limit=40", **headers: str) -> tuple[list[str], str]:
    code, body = await fleet.get(f"{PODS}?{query}" + (f"&continue={token}" if token else ""), **headers)
    assert code == 200, body
    return names(body), body["metadata"].get("continue", "")


async def walk(fleet: Fleet, query: str = "limit=40", **headers: str) -> list[str]:
    found, token = await page(fleet, "", query, **headers)
    while token:
        more, token = await page(fleet, token, query, **headers)
        found += more
    return found


def asked(fleet: Fleet) -> int:
    """Objects that members were asked for."""
    return sum(int(one.query["limit"]) for member in fleet.members.values() for one in member.requests)


@pytest.mark.parametrize("accept", ["application/json", TABLE])
async def test_members_are_asked_for_no_object_twice(fleet: Fleet, accept: str) -> None:
    expected = fill(fleet, 400)
    assert await walk(fleet, Accept=accept) == expected
    # Nine pages of 40 of two members that have half each, and what the last of them ask beyond the end.
    assert asked(fleet) < 470


async def test_without_what_is_kept_the_walk_is_the_same(fleet: Fleet) -> None:
    expected = fill(fleet, 400)
    found, token = await page(fleet)
    while token:
        await fleet.forget()
        more, token = await page(fleet, token)
        found += more
    assert found == expected and asked(fleet) > 500


async def test_the_third_page_is_asked_for_before_its_client_comes(fleet: Fleet) -> None:
    fill(fleet, 400)
    _, token = await page(fleet)
    await asyncio.sleep(0.05)
    assert all(len(member.requests) == 1 for member in fleet.members.values())  # who wants one page gets no more
    _, token = await page(fleet, token)
    for _ in range(500):
        if all(len(member.requests) == 3 for member in fleet.members.values()):
            break
        await asyncio.sleep(0.01)
    for member in fleet.members.values():
        member.fail = lambda: status(500, "InternalError")
    await asyncio.sleep(0.05)
    found, _ = await page(fleet, token)  # members that are away by now are not needed
    assert found == [f"p{i:03d}" for i in range(80, 120)]


async def test_a_page_may_be_asked_for_again(fleet: Fleet) -> None:
    expected = fill(fleet, 400)
    _, token = await page(fleet)
    assert (await page(fleet, token))[0] == (await page(fleet, token))[0] == expected[40:80]


async def test_two_clients_in_step_do_not_share_a_walk(fleet: Fleet) -> None:
    """Their tokens are the same."""
    expected = fill(fleet, 400)
    assert await asyncio.gather(walk(fleet), walk(fleet), walk(fleet)) == [expected] * 3


async def test_another_form_or_limit_of_the_same_token(fleet: Fleet) -> None:
    expected = fill(fleet, 400)
    _, token = await page(fleet)
    found, _ = await page(fleet, token, Accept=TABLE)  # what is kept is JSON
    assert found == expected[40:80]
    _, token = await page(fleet)
    found, token = await page(fleet, token, "limit=300")
    assert found == expected[40:340]
    assert (await page(fleet, token, "limit=1000"))[0] == expected[340:]


async def test_who_is_somebody_else_on_members_gets_nothing_that_was_kept(fleet: Fleet) -> None:
    from dataclasses import replace

    fill(fleet, 400)
    fleet.aggregated = replace(fleet.aggregated, authorization="Member")
    _, token = await page(fleet)
    fleet.user = type(fleet.user)("joe", groups=fleet.user.groups)
    await page(fleet, token)
    for member in fleet.members.values():
        assert member.requests[-1].headers["Impersonate-User"] == "joe"


async def test_what_broke_off_between_two_pages_is_asked_for_again(fleet: Fleet) -> None:
    expected = fill(fleet, 400)
    _, token = await page(fleet)
    _, token = await page(fleet, token)
    early = fleet.reads._lister._kept._kept[token].walk.sources[1]._next
    assert early is not None
    early.error = MemberUnreachable("cluster west: its connection was lost")
    assert (await page(fleet, token))[0] == expected[80:120]
    assert not fleet.clock.gaps


async def test_members_keys_in_one_row_take_few_requests(fleet: Fleet) -> None:
    """Each member has its own namespaces: a page is one member's."""
    for i in range(300):
        fleet.write("east" if i < 150 else "west", pod(f"p{i:03d}"))
    assert await walk(fleet, "limit=100") == [f"p{i:03d}" for i in range(300)]
    assert sum(len(member.requests) for member in fleet.members.values()) <= 9


async def test_the_oldest_walks_go_when_there_are_too_many_and_all_after_a_while(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "ROOMS", 2 * kept.LEAST)
    expected = fill(fleet, 400)
    tokens = [(await page(fleet, query=f"limit={limit}"))[1] for limit in (40, 50, 60)]
    held = fleet.reads._lister._kept
    assert list(held._kept) == tokens[1:] and held._room == 2 * kept.LEAST
    monkeypatch.setattr(kept, "KEEP", 0.01)
    _, token = await page(fleet, tokens[2])
    _, other = await page(fleet, query="limit=70")
    await asyncio.sleep(0.1)
    assert token not in held._kept and other not in held._kept
    assert (await page(fleet, token))[0] == expected[100:140]


async def test_large_objects_are_not_kept(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ROOM", 500)
    expected = fill(fleet, 200)
    assert await walk(fleet) == expected
    assert not fleet.reads._lister._kept._kept


async def test_a_walk_that_expired_meanwhile_is_not_gone_on_with(fleet: Fleet) -> None:
    fill(fleet, 400)
    _, token = await page(fleet)
    del fleet.clock.members["west"]
    code, gone = await fleet.get(f"{PODS}?limit=40&continue={token}")
    assert code == 410 and gone["reason"] == "Expired"
