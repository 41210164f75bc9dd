"""A worker against a controller service in this process: results, leases, breaks, stopping."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import grpc
import pytest
from sdk_tools import until

import reclock
from reclock import (
    Fleet,
    LeaseLost,
    Request,
    Requeue,
    Result,
    SyncRequest,
    Terminal,
    Worker,
    _session,
    controller,
)
from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.testing import FakeFleet, FakeService, World

CONFIGMAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}, "data": {"k": "v"}}


@controller(for_="v1/configmaps")
async def outcomes(request: Request) -> Result:
    match request.name:
        case "again":
            return Requeue(after=2.5, priority=7)
        case "raised":
            raise Requeue(timedelta(minutes=1))
        case "terminal":
            raise Terminal("never")
        case "value":
            return ValueError("as a value")
        case "error":
            raise ValueError("as an exception")
        case "nonsense":
            return 5  # type: ignore[return-value]
    return None


async def test_results_are_values_or_exceptions() -> None:
    async with World(outcomes, clusters=["east"]) as world:
        done = {
            name: await world.reconcile("east", "n", name)
            for name in ("fine", "again", "raised", "terminal", "value", "error", "nonsense")
        }
    assert done["fine"].ok
    assert (done["again"].requeue_after, done["again"].message.priority) == (2.5, 7)
    assert done["raised"].requeue_after == 60
    assert done["terminal"].terminal and done["terminal"].error == "Terminal: never"
    assert done["value"].error == "ValueError: as a value" and not done["value"].terminal
    assert done["error"].error == "ValueError: as an exception"
    assert done["nonsense"].terminal and "returned int" in done["nonsense"].error


async def test_a_request_says_what_it_is_about_and_reads_it() -> None:
    seen: list[Any] = []

    @controller(for_="v1/configmaps")
    async def look(request: Request) -> None:
        seen.append((str(request), request.attempt, request.priority, request.fence, await request.get()))

    async with World(look, clusters=["east"]) as world:
        world.fleet["east"].put(CONFIGMAP)
        await world.reconcile("east", "n", "a", attempt=2, priority=-100, fence=9)
        await world.reconcile("east", "n", "gone")
        left = await world.reconcile("left", "n", "a")
    assert seen[0][:4] == ("east/n/a", 2, -100, 9)
    assert seen[0][4]["data"] == {"k": "v"}
    assert seen[1][4] is None
    assert 'clusters.reclock.dev "left" not found' in left.error, "a cluster that has left says nothing of its objects"


async def test_plain_handlers_run_in_threads() -> None:
    threads: list[threading.Thread] = []

    @controller(for_="v1/configmaps")
    def plain(request: SyncRequest) -> Result:
        threads.append(threading.current_thread())
        obj = request.get()
        assert obj is not None
        request.cluster.apply({**CONFIGMAP, "metadata": {"name": "b", "namespace": "n"}, "data": obj["data"]})
        names = [one["metadata"]["name"] for one in request.cluster.list("v1/configmaps", "n")]
        first = next(iter(request.fleet.cluster("east").watch("v1/configmaps")))
        assert [info.name for info in request.fleet.clusters()] == ["east"]
        return None if names == ["a", "b"] and first.type == "ADDED" else Terminal(str(names))

    async with World(plain, clusters=["east"]) as world:
        world.fleet["east"].put(CONFIGMAP)
        done = await world.reconcile("east", "n", "a")
        assert done.ok, done.error
        assert ("PATCH", "/clusters/east/api/v1/namespaces/n/configmaps/b") in world.fleet["east"].writes
    assert threads[0] is not threading.main_thread()


@controller(for_="v1/configmaps", max_in_flight=3)
async def endless(request: Request) -> None:
    STARTED.append(request.name)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        STOPPED.append(request.name)
        raise


STARTED: list[str] = []
STOPPED: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    STARTED.clear()
    STOPPED.clear()


async def test_a_handler_whose_lease_is_not_renewed_is_stopped() -> None:
    async with World(endless, clusters=["east"], lease=4.0, heartbeat=0.2) as world:
        token = await world.service.hand_out("east", "n", "a")
        await until(lambda: STARTED)
        stream = await world.service.worker()
        await until(lambda: sum(one.WhichOneof("message") == "heartbeat" for one in stream.said) > 12)
        assert not STOPPED, "more than half a lease is over, and it was renewed all the time"
        world.service.renews = False
        done = await world.service.result(token)
        assert STOPPED == ["a"] and "not renewed" in done.error


async def test_a_cancelled_request_stops_and_is_not_answered() -> None:
    async with World(endless, clusters=["east"]) as world:
        token = await world.service.hand_out("east", "n", "a")
        await until(lambda: STARTED)
        stream = await world.service.worker()
        reason = pb.CANCEL_REASON_CLUSTER_LEFT
        stream.send(cancelled=pb.Cancelled(token=token, reason=reason, message="cluster east has left"))
        await until(lambda: STOPPED)
        assert not world.service.answered(token)


async def test_cancelled_before_it_began() -> None:
    async with World(endless, outcomes, clusters=["east"]) as world:
        stream = await world.service.worker("endless")
        stream.send(request=pb.Request(token="early", cluster="east", namespace="n", name="a"))
        stream.send(cancelled=pb.Cancelled(token="early", reason=pb.CANCEL_REASON_MOVED))
        assert (await world.reconcile("east", "n", "b", controller="outcomes")).ok
    assert all(one.WhichOneof("message") != "done" for one in stream.said)


async def test_a_thread_is_told_that_its_lease_has_ended() -> None:
    told: list[BaseException] = []
    begun, go_on = threading.Event(), threading.Event()

    @controller(for_="v1/configmaps")
    def stubborn(request: SyncRequest) -> None:
        begun.set()
        go_on.wait(20)
        assert request.cancelled
        try:
            request.get()
        except LeaseLost as error:
            told.append(error)
            raise

    async with World(stubborn, clusters=["east"]) as world:
        token = await world.service.hand_out("east", "n", "a")
        await asyncio.to_thread(begun.wait, 20)
        stream = await world.service.worker()
        stream.send(cancelled=pb.Cancelled(token=token, reason=pb.CANCEL_REASON_LEASE_ENDED))
        await until(lambda: world.worker._sessions[0]._leases.get(token).lost)  # type: ignore[union-attr]
        go_on.set()
        await until(lambda: told)
        await until(lambda: not len(world.worker._sessions[0]._leases))


async def test_what_runs_survives_a_broken_stream() -> None:
    release = asyncio.Event()

    @controller(for_="v1/configmaps")
    async def slow(request: Request) -> None:
        await release.wait()

    async with World(slow, clusters=["east"]) as world:
        service = world.service
        token = await service.hand_out("east", "n", "a")
        await asyncio.sleep(0.05)
        service.break_streams()
        stream = await service.worker(after=1)
        await until(lambda: any(one.WhichOneof("message") == "resume" for one in stream.said))
        resume = stream.said[1].resume
        assert list(resume.tokens) == [token]
        assert resume.held[0] == pb.Held(token=token, cluster="east", namespace="n", name="a")
        assert stream.register.worker == service.streams[0].register.worker
        release.set()
        assert (await service.result(token)).ok


async def test_what_ended_while_there_was_no_stream_is_told_after_it() -> None:
    release = asyncio.Event()

    @controller(for_="v1/configmaps")
    async def slow(request: Request) -> Result:
        await release.wait()
        return Requeue(after=3)

    async with FakeFleet("east") as fleet, Fleet.connect(fleet.kubeconfig) as client:
        service = FakeService()
        async with service:
            worker = Worker(slow, fleet=client, reconciler=service.address)
            await worker.start()
            token = await service.hand_out("east", "n", "a")
            await asyncio.sleep(0.05)
        await until(lambda: worker._sessions[0]._out is None)  # what is sent into a dying stream is lost
        release.set()
        await until(lambda: worker._sessions[0]._leases.get(token).done)  # type: ignore[union-attr]
        async with service:
            assert (await service.result(token, 20)).requeue_after == 3
            await worker.stop()


async def test_an_unknown_token_after_a_resume_stops_its_handler() -> None:
    async with World(endless, clusters=["east"]) as world:
        token = await world.service.hand_out("east", "n", "a")
        await until(lambda: STARTED)
        del world.service._waiting[token]
        world.service.break_streams()
        await until(lambda: STOPPED)


async def test_stopping_lets_handlers_end_and_gives_the_others_back() -> None:
    release = asyncio.Event()

    @controller(for_="v1/configmaps", max_in_flight=5)
    async def mixed(request: Request) -> None:
        await (release.wait() if request.name == "quick" else asyncio.Event().wait())

    async with World(mixed, clusters=["east"]) as world:
        quick = await world.service.hand_out("east", "n", "quick")
        hung = await world.service.hand_out("east", "n", "hung")
        stream = await world.service.worker()
        await until(lambda: len(world.worker._sessions[0]._leases) == 2)
        world.worker._drain = 0.5
        stopping = asyncio.create_task(world.worker.stop())
        await until(lambda: stream.draining)
        release.set()
        await stopping
        assert world.service.answered(quick) and not world.service.answered(hung)
        await until(lambda: stream.closed_by_worker)


async def test_a_replica_that_drains_is_left_when_its_requests_are_done() -> None:
    release = asyncio.Event()

    @controller(for_="v1/configmaps")
    async def slow(request: Request) -> None:
        await release.wait()

    async with World(slow, clusters=["east"]) as world:
        token = await world.service.hand_out("east", "n", "a")
        stream = await world.service.worker()
        stream.send(drain=pb.Drain())
        await asyncio.sleep(0.1)
        assert not stream.closed_by_worker
        release.set()
        assert (await world.service.result(token)).ok
        await until(lambda: stream.closed_by_worker)
        assert await world.service.worker(after=1) is not stream


async def test_a_refused_registration_says_why() -> None:
    async with FakeFleet() as fleet, FakeService() as service, Fleet.connect(fleet.kubeconfig) as client:
        service.refuses = (grpc.StatusCode.PERMISSION_DENIED, 'user "x" may not work on controllers "outcomes"')
        worker = Worker(outcomes, fleet=client, reconciler=service.address)
        with pytest.raises(reclock.RegistrationRefused, match=r"outcomes: PERMISSION_DENIED: .*may not work"):
            await worker.start()
        service.refuses = (grpc.StatusCode.INVALID_ARGUMENT, "no")
        with pytest.raises(reclock.RegistrationRefused):
            await Worker(outcomes, fleet=client, reconciler=service.address).run()


@pytest.mark.parametrize(("code", "at_once"), [
    (grpc.StatusCode.PERMISSION_DENIED, False), (grpc.StatusCode.UNAVAILABLE, True),
])  # fmt: skip
async def test_one_that_is_taken_and_then_refused_asks_ever_less_often(
    monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode, at_once: bool
) -> None:
    attempts: list[int] = []

    class NoWait(_session.Backoff):
        async def wait(self, hint: float | None = None) -> None:
            attempts.append(self._attempt)
            self._attempt += 1
            await asyncio.sleep(0)

    async def connect(session: _session.Session) -> None:
        session._ever = True
        session.registered.set()
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "no")

    monkeypatch.setattr(_session, "Backoff", NoWait)
    monkeypatch.setattr(_session.Session, "_connect", connect)
    async with Worker(outcomes, fleet=Fleet.without_front(), reconciler="127.0.0.1:1", tls_cert=""):
        await until(lambda: len(attempts) >= 3)
    assert attempts[:3] == ([0, 0, 0] if at_once else [0, 1, 2])


async def test_a_service_that_comes_later_is_waited_for() -> None:
    async with FakeFleet() as fleet, Fleet.connect(fleet.kubeconfig) as client:
        service = FakeService()
        async with service:
            pass  # takes a port
        worker = Worker(outcomes, fleet=client, reconciler=service.address)
        starting = asyncio.create_task(worker.start())
        await asyncio.sleep(0.2)
        assert not starting.done()
        async with service:
            await asyncio.wait_for(starting, 20)
            assert (await service.ask("", "n", "a")).ok
            await worker.stop()


async def test_stopping_without_a_service_does_not_wait() -> None:
    async with FakeFleet() as fleet, Fleet.connect(fleet.kubeconfig) as client:
        worker = Worker(outcomes, fleet=client, reconciler="127.0.0.1:1", drain=60)
        task = asyncio.create_task(worker.run())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)


async def test_who_we_are_goes_with_the_registration(tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    async with FakeFleet("east") as fleet, FakeService() as service:
        settings = {"front": fleet.url, "token_file": str(token), "reconciler": service.address}
        async with Worker(outcomes, **settings) as worker:
            await worker.fleet.clusters()
    assert service.metadata[0]["authorization"] == "Bearer secret"
    assert fleet.headers[0]["Authorization"] == "Bearer secret"


async def test_the_trace_of_the_event_goes_on_to_the_api() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    @controller(for_="v1/configmaps")
    async def look(request: Request) -> None:
        await request.get()

    async with World(look, clusters=["east"]) as world:
        await world.reconcile("east", "n", "a", traceparent=parent)
        assert world.fleet.headers[-1]["traceparent"].split("-")[1] == parent.split("-")[1]


async def test_mappers_may_be_coroutines_and_may_fail() -> None:
    calls: list[bool] = []

    async def by_name(seen: reclock.Seen) -> list[reclock.Target]:
        calls.append(seen.deleted)
        if seen.deleted:
            raise ValueError("no")
        return [reclock.Target(seen.object["metadata"]["name"])]

    @controller(for_="v1/configmaps", watches=[reclock.Watch("v1/secrets", by=by_name)])
    async def watching(request: Request) -> None: ...

    async with World(watching, clusters=["east"]) as world:
        stream = await world.service.worker()
        stream.send(map=pb.Map(id=1000, source="1", object=b'{"metadata": {"name": "s"}}', deleted=True))
        keys = await world.service.map("1", "east", {"metadata": {"name": "s"}})
        assert [(key.name, key.HasField("cluster")) for key in keys] == [("s", False)]
        assert calls == [True, False]


def test_names_and_limits_are_checked_where_they_are_written() -> None:
    def make(**given: Any) -> Callable[[Callable[[Request], Awaitable[Result]]], reclock.Controller]:
        return controller(**{"for_": "v1/configmaps", **given})

    for given, words in (
        ({"for_": "configmaps"}, "names no resource"),
        ({"for_": []}, "for_ is empty"),
        ({"max_in_flight": 0}, "1 to 1000"),
        ({"indexes": [reclock.Index(name="x")]}, "one of label, annotation and path"),
        ({"for_": reclock.For("v1/pods"), "selector": "a=b"}, "inside of For"),
    ):
        with pytest.raises(ValueError, match=words):
            make(**given)
    with pytest.raises(ValueError, match="controller name"):
        make(name="Not Good")(outcomes.handler)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one name"):
        Worker(outcomes, outcomes)
    with pytest.raises(ValueError, match="allowed is 0 to 365 days"):
        Requeue(-1)


async def test_run_inside_of_a_loop_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"await reclock\.start"):
        reclock.run(outcomes)


async def test_start_works_where_a_loop_runs_already() -> None:
    async with FakeFleet("east") as fleet, FakeService() as service:
        worker = await reclock.start(outcomes, kubeconfig=fleet.kubeconfig, reconciler=service.address)
        assert (await service.ask("east", "n", "a")).ok
        await worker.stop()
        await worker.wait()
