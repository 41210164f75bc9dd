"""The reconcile protocol on a real in-process server, over fake clusters: requests, results, leases, back-pressure."""

from __future__ import annotations

import asyncio

import grpc

from reclock.reconciler.v1 import reconciler_pb2 as pb
from tests.integration.work_rig import Worker, for_configmaps, rig


async def quiet(seconds: float = 0.3) -> None:
    """Time in which something could happen that must not."""
    await asyncio.sleep(seconds)


async def test_each_cluster_makes_a_request_of_its_own() -> None:
    async with rig("east", "west") as it:
        for cluster in it.clusters.clusters.values():
            cluster.put("configmaps", "default", "kube-root-ca.crt")
        worker = it.worker(for_configmaps(scope=pb.SCOPE_ALL))
        registered = await worker.next("registered")
        assert registered.lease.seconds == 1 and registered.replica == "r1" and registered.worker
        requests = await worker.requests(3)
        assert {(r.cluster, r.namespace, r.name) for r in requests} == {
            (c, "default", "kube-root-ca.crt") for c in ("", "east", "west")
        }
        assert {r.priority for r in requests} == {-100} and len({r.token for r in requests}) == 3
        assert all(len(r.token) >= 22 for r in requests)
        await quiet()
        assert len(worker.of("request")) == 3
        await worker.close()


async def test_a_change_comes_once_at_normal_priority_and_metadata_is_all_that_is_watched() -> None:
    async with rig("east") as it:
        east = it.clusters.clusters["east"]
        worker = it.worker(for_configmaps())
        await it.synced()
        east.put("configmaps", "a", "one")
        [request] = await worker.requests(1)
        assert (request.cluster, request.namespace, request.name, request.priority, request.attempt) == ("east", "a", "one", 0, 0)
        east.put("configmaps", "a", "one")
        east.put("configmaps", "a", "one")
        await quiet()
        assert len(worker.of("request")) == 1
        await worker.done(request)
        await worker.requests(2)
        assert "PartialObjectMetadata" in east.accepts[-1]
        await worker.close()


async def test_results_requeue_retry_and_end() -> None:
    async with rig("east") as it:
        east = it.clusters.clusters["east"]
        for name in ("again", "fails", "ends"):
            east.put("configmaps", "a", name)
        worker = it.worker(for_configmaps(backoff_base={"nanos": 20_000_000}))
        requests = {r.name: r for r in await worker.requests(3)}
        await worker.done(requests["again"], requeue_after=0.1, priority=7)
        await worker.done(requests["fails"], error="no luck")
        await worker.done(requests["ends"], error="never", terminal=True)
        more = {r.name: r for r in (await worker.requests(5))[3:]}
        assert set(more) == {"again", "fails"}
        assert more["again"].priority == 7 and more["again"].attempt == 0
        assert more["fails"].priority == -100 and more["fails"].attempt == 1
        await worker.done(more["fails"], error="still")
        assert (await worker.requests(6))[5].attempt == 2
        await worker.close()


async def test_no_more_than_max_in_flight_are_held() -> None:
    async with rig("east") as it:
        for number in range(10):
            it.clusters.clusters["east"].put("configmaps", "a", f"{number}")
        worker = it.worker(for_configmaps(max_in_flight=3, caps={"east": 10}))
        for answered in range(7):
            await worker.requests(3 + answered)
            await quiet(0.05)
            assert len(worker.of("request")) == 3 + answered
            await worker.done(worker.of("request")[answered])
        await worker.close()


async def test_a_worker_that_dies_loses_its_requests_when_their_lease_ends() -> None:
    async with rig("east", lease=1) as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        first = it.worker(for_configmaps())
        [request] = await first.requests(1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        first.die()
        second = it.worker(for_configmaps())
        [again] = await second.requests(1)
        assert loop.time() - began > 0.6
        assert again.name == "one" and again.token != request.token and again.attempt == 1
        await second.close()


async def test_a_worker_that_closes_in_order_gives_back_at_once() -> None:
    async with rig("east", lease=60) as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        first = it.worker(for_configmaps())
        await first.requests(1)
        second = it.worker(for_configmaps())
        await second.next("registered")
        await first.close()
        [again] = await second.requests(1)
        assert again.name == "one" and again.attempt == 0
        await second.close()


async def test_heartbeats_keep_a_lease_and_silence_loses_it() -> None:
    async with rig("east", lease=1) as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        [request] = await worker.requests(1)
        for beat in range(8):
            await worker.say(heartbeat=pb.Heartbeat(sequence=beat))
            renewed = await worker.next("renewed", beat + 1)
            assert list(renewed.tokens) == [request.token] and renewed.sequence == beat
            await asyncio.sleep(0.2)
        assert len(worker.of("request")) == 1
        cancelled = await worker.next("cancelled")
        assert (cancelled.token, cancelled.reason) == (request.token, pb.CANCEL_REASON_LEASE_ENDED)
        # Until it says something it gets nothing more: it may be gone without its stream having ended.
        await quiet(0.5)
        assert len(worker.of("request")) == 1
        await worker.done(request)
        again = (await worker.requests(2))[1]
        problem = await worker.next("problem")
        assert (problem.token, problem.code) == (request.token, pb.PROBLEM_CODE_LEASE_ENDED)
        # The result of the ended lease meant nothing: the new one is still to be answered.
        await worker.say(heartbeat=pb.Heartbeat(sequence=99))
        await worker.until(lambda: [r for r in worker.of("renewed") if r.sequence == 99])
        assert again.token in worker.of("renewed")[-1].tokens
        await worker.close()


async def test_repeated_foreign_and_invented_tokens_are_problems_that_the_stream_survives() -> None:
    async with rig("east", lease=60) as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        [request] = await worker.requests(1)
        other = it.worker(for_configmaps())
        await other.next("registered")
        await other.done(request)
        assert (await other.next("problem")).code == pb.PROBLEM_CODE_FOREIGN_TOKEN
        await worker.done(request)
        await worker.done(request)
        assert (await worker.next("problem")).code == pb.PROBLEM_CODE_UNKNOWN_TOKEN
        await worker.say(done=pb.Done(token="invented"))
        assert (await worker.next("problem", 2)).token == "invented"
        await worker.say(register=for_configmaps())
        assert (await worker.next("problem", 3)).code == pb.PROBLEM_CODE_UNEXPECTED
        await worker.say(done=pb.Done(token="x", error="x" * 1_100_000))
        assert (await worker.next("problem", 4)).code == pb.PROBLEM_CODE_TOO_LARGE
        it.clusters.clusters["east"].put("configmaps", "a", "two")
        requests = [*worker.of("request")]
        async with asyncio.timeout(5):
            while len(requests) < 2:
                await asyncio.sleep(0.05)
                requests = [*worker.of("request"), *other.of("request")]
        await worker.close()
        await other.close()


async def test_a_wrong_result_is_told_and_the_lease_goes_on() -> None:
    async with rig("east", lease=60) as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        [request] = await worker.requests(1)
        await worker.say(done=pb.Done(token=request.token, requeue_after={"seconds": -1}))
        problem = await worker.next("problem")
        assert (problem.code, problem.field) == (pb.PROBLEM_CODE_INVALID, "done.requeue_after")
        await worker.say(done=pb.Done(token=request.token, terminal=True))
        assert (await worker.next("problem", 2)).field == "done.terminal"
        await worker.done(request, requeue_after=0.01)
        await worker.requests(2)
        await worker.close()


async def test_workers_of_one_controller_share_and_the_least_loaded_goes_first() -> None:
    async with rig("east", lease=60) as it:
        workers = [it.worker(for_configmaps(max_in_flight=10, worker=name, caps={"east": 100})) for name in ("a", "b")]
        for worker in workers:
            await worker.next("registered")
        for number in range(10):
            it.clusters.clusters["east"].put("configmaps", "a", f"{number}")
        for worker in workers:
            await worker.requests(5)
        await quiet()
        assert [len(worker.of("request")) for worker in workers] == [5, 5]
        for worker in workers:
            await worker.close()


async def test_drain_stops_requests_and_keeps_leases() -> None:
    async with rig("east", lease=60) as it:
        east = it.clusters.clusters["east"]
        east.put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        [request] = await worker.requests(1)
        await worker.say(drain=pb.Drain())
        await worker.say(heartbeat=pb.Heartbeat(sequence=1))
        assert list((await worker.next("renewed")).tokens) == [request.token]
        east.put("configmaps", "a", "two")
        await quiet()
        assert len(worker.of("request")) == 1
        other = it.worker(for_configmaps())
        assert (await other.requests(1))[0].name == "two"
        await worker.done(request)
        await worker.close()
        await other.close()


async def test_a_worker_resumes_what_it_runs_and_gives_back_the_rest() -> None:
    async with rig("east", lease=2) as it:
        for name in ("kept", "dropped"):
            it.clusters.clusters["east"].put("configmaps", "a", name)
        worker = it.worker(for_configmaps(worker="w"))
        requests = {r.name: r for r in await worker.requests(2)}
        worker.die()
        await worker.until(lambda: worker.ended)
        again = it.worker(for_configmaps(worker="w"))
        await again.say(resume=pb.Resume(tokens=[requests["kept"].token, "invented"]))
        assert list((await again.next("resumed")).tokens) == [requests["kept"].token]
        cancelled = await again.next("cancelled")
        assert (cancelled.token, cancelled.reason) == ("invented", pb.CANCEL_REASON_UNKNOWN)
        assert [r.name for r in await again.requests(1)] == ["dropped"]
        await again.done(requests["kept"])
        await quiet(0.5)
        assert not again.of("problem") and len(again.of("request")) == 1
        await again.close()


async def test_a_second_stream_of_a_worker_replaces_the_first() -> None:
    async with rig("east") as it:
        first = it.worker(for_configmaps(worker="w"))
        await first.next("registered")
        second = it.worker(for_configmaps(worker="w"))
        await second.next("registered")
        error = await first.refused()
        assert error.code() == grpc.StatusCode.ABORTED
        await second.close()


async def test_an_old_worker_gets_only_what_it_knows() -> None:
    async with rig("east", lease=1) as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        old = pb.Register(controller="c", sources=[pb.Source(version="v1", resource="configmaps", mapping="For")])
        worker = it.worker(old)
        [request] = await worker.requests(1)
        await worker.say(heartbeat=pb.Heartbeat())
        await worker.say(done=pb.Done(token="unknown"))
        await worker.done(request)
        await quiet()
        assert {each.WhichOneof("message") for each in worker.seen} == {"registered", "request"}
        await worker.close()


async def test_unknown_fields_and_messages_are_ignored() -> None:
    async with rig("east") as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        register = for_configmaps()
        # Field 999 of type string, as a newer worker could send it.
        register.MergeFromString(b"\xba\x3e\x03new")
        worker = it.worker(register)
        [request] = await worker.requests(1)
        newer = pb.WorkRequest.FromString(b"\xba\x3e\x03new")
        await worker.call.write(newer)
        await worker.done(request, requeue_after=0.01)
        await worker.requests(2)
        assert not worker.of("problem")
        await worker.close()


async def test_a_stopping_service_tells_its_workers_and_waits_for_them() -> None:
    async with rig("east", lease=60) as it:
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        [request] = await worker.requests(1)
        it.work.stop_intake()
        await worker.next("drain")
        draining = asyncio.create_task(it.work.drain())
        await quiet()
        assert not draining.done()
        await worker.done(request)
        async with asyncio.timeout(5):
            await draining
        refused: Worker = it.worker(for_configmaps())
        assert (await refused.refused()).code() == grpc.StatusCode.UNAVAILABLE
        await worker.close()


async def test_a_cluster_whose_calls_hang_holds_no_more_than_its_cap() -> None:
    async with rig("east", "west", lease=60) as it:
        for number in range(50):
            it.clusters.clusters["east"].put("configmaps", "a", f"hangs-{number}")
        worker = it.worker(for_configmaps(max_in_flight=8))
        await worker.requests(2)
        for number in range(20):
            it.clusters.clusters["west"].put("configmaps", "a", f"{number}")
        answered = 0
        async with asyncio.timeout(10):
            while answered < 20:
                for request in [r for r in worker.of("request") if r.cluster == "west"][answered:]:
                    await worker.done(request)
                    answered += 1
                await asyncio.sleep(0.01)
        assert len([r for r in worker.of("request") if r.cluster == "east"]) == 2
        await worker.close()


async def test_a_quiet_cluster_does_not_wait_behind_a_noisy_one() -> None:
    async with rig("noisy", "quiet", lease=60) as it:
        for number in range(5_000):
            it.clusters.clusters["noisy"].put("configmaps", "a", f"{number}")
        worker = it.worker(for_configmaps(max_in_flight=1))
        handled = 0

        async def work() -> None:
            nonlocal handled
            while True:
                requests = worker.of("request")
                for request in requests[handled:]:
                    handled += 1
                    await worker.done(request)
                await asyncio.sleep(0.001)

        working = asyncio.create_task(work())
        await worker.requests(20)
        await it.synced()
        before = handled
        it.clusters.clusters["quiet"].put("configmaps", "a", "one")
        await worker.until(lambda: any(r.cluster == "quiet" for r in worker.of("request")))
        place = next(i for i, r in enumerate(worker.of("request")) if r.cluster == "quiet")
        working.cancel()
        # In turns, however many wait: what passed before it is what was handled until its event had arrived.
        assert place - before < 500
        await worker.close()


async def test_a_request_names_the_heartbeat_that_its_lease_counts_from() -> None:
    async with rig("east", lease=60) as it:
        worker = it.worker(for_configmaps())
        await it.synced()
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        [first] = await worker.requests(1)
        assert first.HasField("heartbeat") and first.heartbeat == 0
        await worker.say(heartbeat=pb.Heartbeat(sequence=7))
        await worker.next("renewed")
        it.clusters.clusters["east"].put("configmaps", "a", "two")
        assert (await worker.requests(2))[1].heartbeat == 7
        await worker.close()
