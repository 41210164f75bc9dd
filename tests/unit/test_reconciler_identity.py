"""Nothing is made on a cluster that is not the one that is meant, nor by a replica that may not work any more."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from reconciler_world import FLEET, Client, Made
from test_reconciler_leaving import Leaves, Queue

from services.common.errors import MemberUnreachable, StatusError
from services.reconciler.applier import Applier
from services.reconciler.controllers import copies, workloads
from services.reconciler.controllers.context import Again, Context
from services.reconciler.decide import decide
from services.reconciler.keys import Key
from services.reconciler.manifests import manifest
from services.reconciler.names import COPIED, FENCED, STATEFULSETS, Obj

SPEC: Obj = {"template": {"spec": {"containers": []}}}
ONCE = {"annotations": {"reclock.dev/at-most-once": "true"}}


@pytest.fixture
def made() -> Made:
    return Made("east", "west")


def client_of(made: Made, name: str = "east") -> Client:
    return made.member(name).client  # type: ignore[return-value]


async def test_what_must_not_run_twice_is_made_only_after_the_cluster_has_said_which_it_is(made: Made) -> None:
    east, applier, client = made.member("east"), Applier(), client_of(made)
    await applier.sync(east, "configmap", manifest("configmap", made.host("configmap", "c"), FLEET))
    # Another cluster has taken its address since, which discovery has not noticed yet.
    client.uid = "another"
    for kind, obj in (
        ("statefulset", made.host("statefulset", "s", spec=SPEC)), ("job", made.host("job", "j", spec=SPEC, metadata=ONCE)),
    ):  # fmt: skip
        with pytest.raises(MemberUnreachable, match="uid another answers"):
            await applier.sync(east, kind, manifest(kind, obj, FLEET))
    assert [name for _, _, name in client.objects] == ["c"]
    # Anything else is made on an answer that is a second old at most.
    east._identified = float("-inf")
    with pytest.raises(MemberUnreachable):
        await applier.sync(east, "configmap", manifest("configmap", made.host("configmap", "d"), FLEET))
    client.uid = east.member.uid = ""
    with pytest.raises(MemberUnreachable):
        await applier.sync(east, "statefulset", manifest("statefulset", made.host("statefulset", "s", spec=SPEC), FLEET))


async def test_what_another_cluster_does_not_have_is_not_taken_for_gone(made: Made) -> None:
    made.copy("statefulset", made.host("statefulset", "s", spec=SPEC), "east")
    informer = made.member("east").informers["statefulset"]
    client_of(made).uid = "another"
    with pytest.raises(MemberUnreachable):
        await informer._relist()
    assert list(informer.store) == [("ns", "s")]


async def test_a_replica_that_lost_the_host_between_two_calls_writes_nothing_more(made: Made) -> None:
    client, valid = client_of(made), True
    asked = client.request

    async def lost(*args: Any, **how: Any) -> Any:
        nonlocal valid
        answer = await asked(*args, **how)
        valid = False
        return answer

    client.request = lost  # type: ignore[method-assign]
    applier = Applier(lambda: valid)
    job = made.host("job", "j", spec=SPEC)
    with pytest.raises(StatusError, match="another replica"):
        await applier.sync(made.member("east"), "job", manifest("job", job, FLEET))
    with pytest.raises(StatusError, match="another replica"):
        await applier.delete(made.member("east"), "job", made.copy("job", job, "east"))
    assert [call for call in client.calls if call[0] != "get"] == []


@pytest.mark.parametrize("ours_is_old", [True, False])
async def test_a_copy_of_another_host_object_goes_only_if_the_host_itself_says_so(made: Made, ours_is_old: bool) -> None:
    """Whose picture is the old one: that of the host, or the copy?"""
    newer = made.host("statefulset", "s", spec=SPEC, metadata={"uid": "newer"})
    made.copy("statefulset", newer, "east")
    seen = made.host("statefulset", "s", spec=SPEC, metadata={"uid": "seen"})
    made.placed("statefulset", seen, {"east": 1})
    made.client.hold(COPIED["statefulset"], newer if ours_is_old else seen)
    context = Context(made.world, Queue(), Applier(), None)  # type: ignore[arg-type]
    key = Key("statefulset", "ns", "s")
    if ours_is_old:
        with pytest.raises(Again):
            await copies.reconcile(context, made.member("east"), key)
    else:
        await copies.reconcile(context, made.member("east"), key)
    assert ((STATEFULSETS.key, "ns", "s") in client_of(made).objects) is ours_is_old


async def test_one_that_a_write_met_waits_for_that_judgement(made: Made) -> None:
    newer = made.host("job", "j", spec=SPEC, metadata={"uid": "newer"})
    client_of(made).hold(COPIED["job"], manifest("job", newer, FLEET))
    seen = made.host("job", "j", spec=SPEC, metadata={"uid": "seen"})
    assert await Applier().sync(made.member("east"), "job", manifest("job", seen, FLEET)) == "earlier"
    assert client_of(made).objects


@pytest.mark.parametrize(("kind", "running", "rests"), [
    ("statefulset", {"observedGeneration": 1, "replicas": 1}, {"observedGeneration": 1}),
    ("statefulset", {"observedGeneration": 0}, {"observedGeneration": 1}),
    ("job", {"active": 1}, {"conditions": [{"type": "Suspended", "status": "True"}]}),
    ("job", {"terminating": 1, "conditions": [{"type": "Suspended", "status": "True"}]},
     {"conditions": [{"type": "Suspended", "status": "True"}]}),
])  # fmt: skip
def test_a_copy_is_fenced_when_its_pods_are_gone(made: Made, kind: str, running: Obj, rests: Obj) -> None:
    owner = made.host(kind, "a", spec=SPEC, metadata=ONCE)
    made.placed(kind, owner, {"east": 1})
    how: Obj = {"suspend": True} if kind == "job" else {"replicas": 0}
    copy = made.copy(kind, owner, "east", status=running, **how)
    copy["metadata"]["annotations"][FENCED] = "2026-01-01T00:00:00Z"
    assert decide(made.world, kind, owner, made.member("east")).message.startswith("being fenced since")
    copy["status"] = rests
    # The scheduler may start it elsewhere on these words.
    assert decide(made.world, kind, owner, made.member("east")).message.startswith("fenced since")


async def test_a_cluster_where_something_may_run_that_must_not_run_twice_is_not_let_go() -> None:
    leaves = Leaves()
    job = leaves.made.host("job", "a", spec=SPEC, metadata=ONCE)
    entry = {"cluster": "east", "state": "LeftBehind", "message": ""}
    leaves.made.placed("job", job, None, copies=[entry])
    leaves.east.member.reachable = False
    leaves.leave(50_000)
    assert await leaves.step()
    assert leaves.released == []
    # The scheduler takes it for lost, its worker having stopped it: rule 4 is judged there.
    lost = [{"type": "Evicted", "status": "True", "reason": "ClusterLost"}]
    leaves.made.placed("job", job, None, copies=[entry], conditions=lost)
    assert not await leaves.step()
    leaves.released.clear()
    leaves.made.placed("job", job, None, copies=[entry])
    leaves.east.member.forgotten = True
    assert not await leaves.step()
    assert [name for name, _, _ in leaves.released] == ["east"]


async def test_copies_of_what_must_not_run_twice_are_reported_over_what_was_seen_only(made: Made) -> None:
    patches: list[Obj] = []

    async def patch(resource: Any, namespace: str, name: str, body: Obj, **query: Any) -> Obj:
        patches.append(body)
        return {}

    made.client.patch = patch  # type: ignore[method-assign, assignment]
    owner = made.host("statefulset", "s", spec=SPEC, status={"replicas": 1})
    workload = made.placed("statefulset", owner, {"east": 1})
    made.copy("statefulset", owner, "east")
    context = Context(made.world, Queue(), Applier(), None)  # type: ignore[arg-type]
    workload["status"]["conditions"] = workloads._conditions([], workload, "statefulset", owner)
    await workloads._report(context, workload, "statefulset", owner)
    assert patches[0]["metadata"]["resourceVersion"] == workload["metadata"]["resourceVersion"]
    assert "conditions" not in patches[0]["status"]


async def test_what_was_placed_elsewhere_while_the_member_was_asked_is_not_made_there(made: Made) -> None:
    owner = made.host("statefulset", "s", spec=SPEC)
    made.placed("statefulset", owner, {"east": 1})
    client = client_of(made)
    asked = client.request

    async def moved(*args: Any, **how: Any) -> Any:
        made.placed("statefulset", owner, {"west": 1})
        return await asked(*args, **how)

    client.request = moved  # type: ignore[method-assign]
    made.seen("namespace", {"metadata": {"name": "ns", "uid": "ns", "resourceVersion": "1", "finalizers": ["reclock.dev/members"]}})
    made.world.host.informers["namespace"].store["", "ns"] = {"metadata": {"name": "ns", "uid": "ns", "resourceVersion": "1"}}
    made.member("east").namespaces.add("ns")
    context = Context(made.world, Queue(), Applier(), None)  # type: ignore[arg-type]
    with pytest.raises(Again):
        await copies.reconcile(context, made.member("east"), Key("statefulset", "ns", "s"))
    assert not any(call[0] == "create" for call in client.calls)


async def test_a_copy_that_was_sent_and_not_seen_yet_keeps_others_waiting(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = made.host("statefulset", "s", spec=SPEC)
    workload = made.placed("statefulset", owner, {"east": 1})
    east, west, client = made.member("east"), made.member("west"), client_of(made)
    sent, answer = asyncio.Event(), asyncio.Event()
    create = client.create

    async def slow(*args: Any, **query: Any) -> Obj:
        sent.set()
        await answer.wait()
        return await create(*args, **query)

    client.create = slow  # type: ignore[method-assign]
    task = asyncio.create_task(Applier().sync(east, "statefulset", manifest("statefulset", owner, FLEET)))
    await sent.wait()
    workload = made.placed("statefulset", owner, {"west": 1})
    assert decide(made.world, "statefulset", owner, west).message == "the copy on east goes first"
    assert {c["cluster"]: c["state"] for c in workloads.copies_of(made.world, workload)}["east"] == "Removing"
    answer.set()
    assert await task == "written"
    assert decide(made.world, "statefulset", owner, west).action == "keep", "its event has not come yet"
    stored = client.objects[STATEFULSETS.key, "ns", "s"]
    made.cached("statefulset", stored, "east")
    assert decide(made.world, "statefulset", owner, east).action == "remove"
    east._handle("statefulset", "DELETED", stored, None)
    del east.informers["statefulset"].store["ns", "s"]
    assert decide(made.world, "statefulset", owner, west).action == "apply"
    # One that was refused is not there; of one without an answer nobody knows, the less while the member is away.
    client.create = create  # type: ignore[method-assign]
    client.objects.clear()
    for error, there in ((StatusError(422, "Invalid", "no"), False), (MemberUnreachable("gone"), True)):
        client.refuse = error
        with pytest.raises(StatusError):
            await Applier().sync(east, "statefulset", manifest("statefulset", owner, FLEET))
        assert east.may_have("host-s") is there
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 29)
    east.member.reachable = False
    assert east.may_have("host-s")
    east.member.reachable = True
    monkeypatch.setattr(time, "monotonic", lambda: now + 58)
    assert east.may_have("host-s"), "its event could not come while the member was away"
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)
    assert not east.may_have("host-s")
