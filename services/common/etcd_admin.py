"""Upkeep of an etcd cluster: state of each endpoint, alarms, defragmentation one endpoint at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from aetcd.rpc import rpc_pb2

from services.common.etcd import Etcd, EtcdDenied, EtcdError, EtcdUnavailable
from services.common.etcd_endpoint import Endpoint

STATUS_TIMEOUT = 3.0
DEFRAGMENT_TIMEOUT = 300.0
SETTLE_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One endpoint; `problem` says why it has no figures."""

    address: str
    member: int = 0
    version: str = ""
    size: int = 0
    """Bytes of the database file: what the quota counts."""
    used: int = 0
    """Bytes of it that hold data; defragmentation gives the rest back."""
    leader: bool = False
    alarms: tuple[str, ...] = ()
    """NOSPACE, CORRUPT: of any member of the cluster, as this one knows them."""
    problem: str = ""
    denied: bool = False
    """It answers, but does not tell this user: `problem` says so."""


async def states(etcd: Etcd) -> list[EndpointState]:
    """Every endpoint's state, asked at once; never raises."""
    return list(await asyncio.gather(*(_state(etcd, one) for one in etcd.endpoints)))


async def _state(etcd: Etcd, endpoint: Endpoint) -> EndpointState:
    try:
        answer = await etcd.call(
            endpoint, "maintenance", "Status", rpc_pb2.StatusRequest(), timeout=STATUS_TIMEOUT
        )
    except EtcdError as error:
        return EndpointState(endpoint.address, problem=str(error), denied=isinstance(error, EtcdDenied))
    member = int(answer.header.member_id)
    problem = "" if answer.leader else "it knows no leader"
    return EndpointState(
        endpoint.address, member, answer.version, int(answer.dbSize), int(answer.dbSizeInUse),
        int(answer.leader) == member, _alarms(answer.errors), problem,
    )  # fmt: skip


def _alarms(errors: Iterable[str]) -> tuple[str, ...]:
    """Alarms are among a status' errors, as text."""
    return tuple(name for name in ("NOSPACE", "CORRUPT") if any(name in text for text in errors))


async def alarms(etcd: Etcd) -> dict[str, list[int]]:
    """Alarms that are on: NOSPACE or CORRUPT -> ids of the members that raised them. EtcdError."""
    answer = await etcd.alarm(rpc_pb2.AlarmRequest(action=rpc_pb2.AlarmRequest.GET))
    found: dict[str, list[int]] = {}
    for one in answer.alarms:
        found.setdefault(rpc_pb2.AlarmType.Name(one.alarm), []).append(int(one.memberID))
    return found


async def disarm(etcd: Etcd) -> list[int]:
    """Switch NOSPACE alarms off; they come back at the next write that does not fit. EtcdError."""
    members = (await alarms(etcd)).get("NOSPACE", [])
    for member in members:
        await etcd.alarm(
            rpc_pb2.AlarmRequest(
                action=rpc_pb2.AlarmRequest.DEACTIVATE, memberID=member, alarm=rpc_pb2.AlarmType.NOSPACE
            )
        )
    return members


async def defragment(etcd: Etcd) -> AsyncIterator[tuple[EndpointState, EndpointState]]:
    """Defragment one endpoint after another, the leader last; yield each one's state before and after.

    A member answers nothing meanwhile, so the next one's turn comes only when all are back. EtcdUnavailable when
    one is away already: a second one without service would cost the quorum.
    """
    whole = await states(etcd)
    if away := [one.address for one in whole if one.problem]:
        raise EtcdUnavailable(f"etcd: {', '.join(away)} is not healthy: nothing more is taken out of service")
    # Two addresses of one member are one defragmentation.
    order = {one.member: one for one in sorted(whole, key=lambda one: one.leader)}
    for before in order.values():
        endpoint = next(one for one in etcd.endpoints if one.address == before.address)
        await etcd.call(
            endpoint, "maintenance", "Defragment", rpc_pb2.DefragmentRequest(), timeout=DEFRAGMENT_TIMEOUT
        )
        yield before, await _settled(etcd, endpoint)


async def _settled(etcd: Etcd, endpoint: Endpoint) -> EndpointState:
    deadline = asyncio.get_running_loop().time() + SETTLE_TIMEOUT
    while True:
        state = await _state(etcd, endpoint)
        if not state.problem:
            return state
        if asyncio.get_running_loop().time() > deadline:
            raise EtcdUnavailable(f"etcd: {endpoint.address} did not come back: {state.problem}")
        await asyncio.sleep(0.2)
