"""Who may call what: the table against the contracts and the documentation, and what it refuses."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor

import reclock
from services.common import callers
from services.common.callers import (
    AGGREGATOR,
    DISCOVERY,
    RECONCILER,
    RULES,
    SCHEDULER,
    SINKER,
    On,
    Told,
    for_users,
    refusal,
)

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
SERVICES = {AGGREGATOR, DISCOVERY, RECONCILER, SCHEDULER, SINKER}


def rpcs() -> dict[str, MethodDescriptor]:
    """Every RPC of every service that there is a stub of."""
    found: dict[str, MethodDescriptor] = {}
    for module in pkgutil.walk_packages(reclock.__path__, "reclock."):
        if module.name.endswith("_pb2"):
            for service in importlib.import_module(module.name).DESCRIPTOR.services_by_name.values():
                found |= {f"/{service.full_name}/{method.name}": method for method in service.methods}
    return found


def test_every_rpc_is_named_and_nothing_else() -> None:
    known = rpcs()
    assert len({method.containing_service.full_name for method in known.values()}) == 9
    assert set(RULES) == set(known), "callers.RULES says of every RPC who may call it"
    assert all(rule.services <= SERVICES and (rule.services or rule.users) for rule in RULES.values())


def test_fields_that_rules_name_are_in_the_requests() -> None:
    for method, rule in RULES.items():
        if isinstance(rule.users, Told):
            importlib.import_module(rule.users.by)
        elif isinstance(rule.users, On):
            assert not rpcs()[method].client_streaming, "there is no request to judge by"
            for path in filter(None, (rule.users.namespace, rule.users.name)):
                message: Any = rpcs()[method].input_type
                *parts, last = path.split(".")
                for part in parts:
                    message = message.fields_by_name[part].message_type
                assert message.fields_by_name[last].type == FieldDescriptor.TYPE_STRING, (method, path)


def test_what_users_need_is_documented() -> None:
    """A row for each RPC that is for users: `| Service | RPC … | verbs and resource |`."""
    rows = [line for line in OPERATIONS.read_text().splitlines() if line.startswith("| `")]
    for method, rule in RULES.items():
        service, rpc = method.split(".")[-1].split("/")
        row = [line for line in rows if f"`{service}`" in line and f"`{rpc}`" in line]
        assert len(row) == (1 if rule.users else 0), method
        if isinstance(rule.users, On):
            on = rule.users
            what = on.path or f"{on.resource}/{on.subresource}".rstrip("/")
            assert f"{', '.join(on.verbs)} `{what}`" in row[0], method


def test_state_is_changed_by_verbs_that_change() -> None:
    """Nobody may change anything with rights to read."""
    changing = {method for method, rule in RULES.items() if isinstance(rule.users, On) and not rule.users.reads}
    assert {method.rpartition("/")[2] for method in changing} == {
        "RegisterCluster", "DeregisterCluster", "ForgetCluster", "Submit", "Cancel", "RebuildMarkers", "UpdateQueue",
    }  # fmt: skip


@pytest.mark.parametrize(("names", "method", "refused"), [
    ({"reclock-aggregator"}, "/reclock.discovery.v1.DiscoveryService/WatchClusters", False),
    ({"reclock-aggregator"}, "/reclock.discovery.v1.DiscoveryService/RegisterCluster", True),
    ({"reclock-reconciler", "x"}, "/reclock.discovery.v1.DiscoveryService/ReleaseCluster", False),
    ({"someone"}, "/reclock.discovery.v1.DiscoveryService/ReleaseCluster", True),
    ({"someone"}, "/reclock.discovery.v1.DiscoveryService/RegisterCluster", True),
    ({"someone"}, "/reclock.discovery.v1.DiscoveryService/ListClusters", True),
    ({"reclock-aggregator"}, "/reclock.discovery.v1.DiscoveryService/ForgetCluster", False),
    ({"someone"}, "/reclock.aggregator.v1.ClockService/Stats", True),
    (set(), "/reclock.scheduler.v1.AdmissionService/Heartbeat", True),
    ({"reclock-scheduler"}, "/reclock.scheduler.v1.AdmissionService/Heartbeat", False),
    ({"reclock-sinker"}, "/reclock.reconciler.v1.ReconcilerService/Work", False),
    ({"someone"}, "/reclock.reconciler.v1.ReconcilerService/Work", True),
    ({"reclock-sinker"}, "/reclock.reconciler.v1.QueueService/UpdateQueue", True),
    ({"reclock-aggregator"}, "/reclock.of.tomorrow.v1.Service/Rpc", True),
    ({"someone"}, "/grpc.health.v1.Health/Check", False),
])  # fmt: skip
def test_what_certificates_may_call(names: set[str], method: str, refused: bool) -> None:
    assert bool(refusal(names, method)) is refused


def test_services_without_anything_for_users_are_not_on_their_port() -> None:
    shown = {method.split("/")[1].split(".")[-1] for method in RULES if for_users(method.split("/")[1])}
    assert shown == {"DiscoveryService", "PlacementService", "ClockService", "ReconcilerService", "QueueService"}
    assert callers.HEALTH not in RULES
