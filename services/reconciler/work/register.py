"""`Register`, checked and decoded. Everything wrong is named at once."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from reclock.reconciler.v1 import reconciler_pb2 as pb
from services.reconciler.work.spec import (
    MAX_IN_FLIGHT,
    NAME,
    PROTOCOL,
    BadRegister,
    Checker,
    ControllerSpec,
    WorkerSpec,
    check_cap,
    check_weight,
    seconds,
)
from services.reconciler.work.spec_sources import decode_indexes, decode_sources


def decode(register: pb.Register) -> tuple[ControllerSpec, WorkerSpec]:
    """Check and decode; raises BadRegister."""
    check = Checker()
    name = register.controller
    if not NAME.fullmatch(name):
        check.say("controller", f"{name!r}: 1 to 63 of a-z, 0-9, '-', '.', starting and ending with a letter or digit")
    scope = _enum(check, "scope", register.scope, pb.Scope)
    mode = _enum(check, "mode", register.mode, pb.Mode)
    for key in "weights", "caps":
        checked = check_weight if key == "weights" else check_cap
        for cluster, value in getattr(register, key).items():
            if problem := checked(value):
                check.say(f"{key}[{cluster!r}]", problem)
    sources = decode_sources(check, register, scope or pb.SCOPE_MEMBERS)
    spec = ControllerSpec(
        name, sources, check.selector("cluster_selector", register.cluster_selector), scope or pb.SCOPE_MEMBERS,
        dict(register.weights), dict(register.caps), mode == pb.MODE_PRIORITY_FIRST,
        decode_indexes(check, register, sources), *_backoff(check, register), register.leaving_clusters,
    )  # fmt: skip
    worker = _worker(check, register)
    if check.violations:
        raise BadRegister(check.violations)
    return spec, worker


def _enum(check: Checker, path: str, value: int, kind: Any) -> int:
    known = kind.values()
    if value not in known:
        check.say(path, f"{value} is not known; allowed: {', '.join(map(str, kind.keys()))}")
    return value


def _worker(check: Checker, register: pb.Register) -> WorkerSpec:
    if len(register.worker) > 253 or not register.worker.isprintable():
        check.say("worker", "at most 253 printable characters")
    if register.protocol_version < 0:
        check.say("protocol_version", f"{register.protocol_version}: must not be negative")
    number = int(check.between("max_in_flight", register.max_in_flight or 1, 1, MAX_IN_FLIGHT))
    return WorkerSpec(register.worker or str(uuid4()), number, min(register.protocol_version, PROTOCOL))


def _backoff(check: Checker, register: pb.Register) -> tuple[float, float]:
    base = seconds(register.backoff_base) if register.HasField("backoff_base") else 0.005
    most = seconds(register.backoff_max) if register.HasField("backoff_max") else max(1000.0, base)
    check.between("backoff_base", base, 0.001, 86400)
    check.between("backoff_max", most, base, 86400 * 365)
    return base, most
