"""Registrations: what is refused, and with which field; who may register; old, new and changing ones."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import grpc
import pytest

from reclock.reconciler.v1 import reconciler_pb2 as pb
from reclock.reconciler.v1 import reconciler_pb2_grpc as rpc
from services.common.access import by_certificate
from services.common.recheck import Recheck
from services.reconciler.work.register import decode
from services.reconciler.work.spec import BadRegister
from tests.integration.work_rig import Worker, for_configmaps, rig, violations

CONFIGMAPS = pb.Source(version="v1", resource="configmaps", for_object=pb.ForObject())


def source(**fields: Any) -> pb.Source:
    """A source of ConfigMaps with more fields."""
    made = pb.Source(version="v1", resource="configmaps", **fields)
    if made.WhichOneof("to") is None:
        made.for_object.SetInParent()
    return made


@pytest.mark.parametrize(("register", "field"), [
    (for_configmaps("Not Good"), "controller"),
    (for_configmaps(sources=[pb.Source(version="v1", channel=pb.Channel())]), "sources[0].version"),
    (for_configmaps(sources=[pb.Source(label_selector="a=b", channel=pb.Channel())]), "sources[0].label_selector"),
    (for_configmaps(sources=[pb.Source(channel=pb.Channel(), target="none"), CONFIGMAPS]), "sources[0].target"),
    (for_configmaps(weights={"east": 0}), "weights['east']"),
    (for_configmaps(weights={"east": -1}), "weights['east']"),
    (for_configmaps(weights={"east": math.nan}), "weights['east']"),
    (for_configmaps(weights={"east": math.inf}), "weights['east']"),
    (for_configmaps(caps={"east": 0}), "caps['east']"),
    (for_configmaps(max_in_flight=1001), "max_in_flight"),
    (for_configmaps(max_in_flight=-1), "max_in_flight"),
    (for_configmaps(cluster_selector="a in b"), "cluster_selector"),
    (for_configmaps(scope=17), "scope"),
    (for_configmaps(mode=17), "mode"),
    (for_configmaps(sources=[]), "sources"),
    (for_configmaps(backoff_base={"seconds": -1}), "backoff_base"),
    (for_configmaps(backoff_base={"seconds": 9}, backoff_max={"seconds": 8}), "backoff_max"),
    (for_configmaps(sources=[source(label_selector="a==b==c")]), "sources[0].label_selector"),
    (for_configmaps(sources=[pb.Source(version="v1", resource="pods/log", for_object=pb.ForObject())]), "sources[0].resource"),
    (for_configmaps(sources=[pb.Source(version="one", resource="pods", for_object=pb.ForObject())]), "sources[0].version"),
    (for_configmaps(sources=[pb.Source(version="v1", resource="pods")]), "sources[0].to"),
    (for_configmaps(sources=[CONFIGMAPS, source(by_field=pb.ByField(path="a..b"))]), "sources[1].by_field.path"),
    (for_configmaps(sources=[source(predicates=pb.Predicates(changes=[0]))]), "sources[0].predicates.changes"),
    (for_configmaps(sources=[source(name="a"), source(name="a")]), "sources"),
    (for_configmaps(sources=[source(name="a"), source(by_owner=pb.ByOwner(), target="b")]), "sources[1].target"),
    (for_configmaps(sources=[source(priority=40000)]), "sources[0].priority"),
    (for_configmaps(sources=[source(scope=pb.SCOPE_HOST)]), "sources[0].scope"),
    (for_configmaps(indexes=[pb.Index(name="owner", label="a")]), "indexes[0].name"),
    (for_configmaps(indexes=[pb.Index(name="x", label="a", source="none")]), "indexes[0].source"),
    (for_configmaps(indexes=[pb.Index(name="x", path="]")]), "indexes[0].path"),
    (for_configmaps(indexes=[pb.Index(name="x")]), "indexes[0].by"),
])  # fmt: skip
def test_what_is_wrong_is_named_by_its_field(register: pb.Register, field: str) -> None:
    with pytest.raises(BadRegister) as raised:
        decode(register)
    found = dict(raised.value.violations)
    assert found.get(field)
    if "weights" in field:
        assert "1e-06 to 1e+06" in found[field]


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(BadRegister) as raised:
        decode(for_configmaps("", weights={"a": 0, "b": 1}, sources=[source(label_selector="=")]))
    assert [field for field, _ in raised.value.violations] == ["controller", "weights['a']", "sources[0].label_selector"]


async def test_refusals_reach_the_worker_with_details() -> None:
    async with rig("east", "west") as it:
        error = await it.worker(for_configmaps(weights={"east": 0})).refused()
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "weights['east']" in violations(error)

        for name in ("", "east", "west"):
            it.clusters.clusters[name].lacks.add("secrets")
        secrets = pb.Source(version="v1", resource="secrets", for_object=pb.ForObject())
        error = await it.worker(for_configmaps(sources=[secrets])).refused()
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "east, west" in violations(error)["sources[0].resource"]

        unknown = pb.Source(group="nothing.example.com", version="v1", resource="things", for_object=pb.ForObject())
        error = await it.worker(for_configmaps(sources=[unknown])).refused()
        assert "not served by" in violations(error)["sources[0].resource"]

        error = await it.worker(for_configmaps(sources=[source(field_selector="bad=1")])).refused()
        assert "not supported" in violations(error)["sources[0].field_selector"]

        nodes = pb.Source(version="v1", resource="nodes", namespaces=["a"], for_object=pb.ForObject())
        error = await it.worker(for_configmaps(sources=[nodes])).refused()
        assert "cluster-scoped" in violations(error)["sources[0].namespaces"]


async def test_a_resource_that_some_clusters_lack_is_a_warning_and_the_rest_works() -> None:
    async with rig("east", "west") as it:
        it.clusters.clusters["west"].lacks.add("configmaps")
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        assert list((await worker.next("registered")).warnings) == ["v1 configmaps is not served by west"]
        assert (await worker.requests(1))[0].cluster == "east"
        it.clusters.clusters["west"].lacks.clear()
        it.clusters.clusters["west"].put("configmaps", "a", "two")
        assert (await worker.requests(2))[1].cluster == "west"
        await worker.close()


async def test_a_cluster_that_hangs_keeps_nobody_from_registering() -> None:
    async with rig("east", "west") as it:
        it.clusters.clusters["west"].hangs = True
        it.clusters.clusters["east"].put("configmaps", "a", "one")
        worker = it.worker(for_configmaps())
        assert (await worker.requests(1))[0].cluster == "east"
        await worker.close()


async def test_the_first_message_must_be_register() -> None:
    async with rig() as it:
        call = it.stub.Work()
        await call.write(pb.WorkRequest(heartbeat=pb.Heartbeat()))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_the_host_judges_the_workers_own_identity() -> None:
    async with rig("east") as it:
        host = it.clusters.clusters[""]
        host.tokens["good"] = {"username": "ada", "groups": ["dev"], "uid": "u1"}
        host.allow = lambda spec: spec["resourceAttributes"].get("resource") != "secrets"
        error = await it.worker(for_configmaps(), token="bad").refused()
        assert error.code() == grpc.StatusCode.UNAUTHENTICATED

        worker = it.worker(for_configmaps(sources=[source(namespaces=["a"])]), token="good")
        await worker.next("registered")
        asked = [(r["user"], tuple(r["groups"]), tuple(sorted(r["resourceAttributes"].items()))) for r in host.reviews]
        assert [dict(attributes) for _, _, attributes in asked] == [
            {"verb": "work", "group": "reclock.dev", "resource": "controllers", "name": "c"},
            {"verb": "list", "resource": "configmaps", "namespace": "a"},
            {"verb": "watch", "resource": "configmaps", "namespace": "a"},
        ]
        assert {(user, groups) for user, groups, _ in asked} == {("ada", ("dev",))}

        secrets = pb.Source(version="v1", resource="secrets", for_object=pb.ForObject())
        error = await it.worker(for_configmaps("d", sources=[secrets]), token="good").refused()
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED and "list secrets" in (error.details() or "")
        await worker.close()


async def test_names_of_the_built_in_controllers_are_their_own() -> None:
    async with rig("east") as it:
        host = it.clusters.clusters[""]
        host.tokens["t"] = {"username": "reclock:built-in", "groups": ["system:masters"]}
        name = "reclock-workloads"
        own = it.worker(for_configmaps(name, leaving_clusters=True), token=it.work.token)
        await own.next("registered")
        await own.say(resume=pb.Resume(sole=True))
        await own.next("resumed")
        for token in ("", "t"):
            # Whatever rights it has: its registration would replace theirs.
            error = await it.worker(for_configmaps(name, sources=[source(by_owner=pb.ByOwner())]), token=token).refused()
            assert error.code() == grpc.StatusCode.PERMISSION_DENIED and "choose another one" in (error.details() or "")
        hub = it.work.parts.hub
        assert hub is not None and hub.controllers[name].spec.leaving and len(hub.controllers[name].seats) == 1
        assert not own.ended
        await own.close()


async def test_who_ends_others_work_or_keeps_leaving_clusters_may_lead() -> None:
    async with rig("east", recheck=Recheck(0.1, 60)) as it:
        host = it.clusters.clusters[""]
        host.tokens.update(ada={"username": "ada"}, bob={"username": "bob"})
        leads = {"bob"}
        host.allow = lambda spec: spec["resourceAttributes"]["verb"] != "lead" or spec["user"] in leads
        error = await it.worker(for_configmaps(leaving_clusters=True), token="ada").refused()
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED
        assert "leaving_clusters: user 'ada' cannot lead controllers.reclock.dev 'c'" in (error.details() or "")

        other = it.worker(for_configmaps(worker="other"), token="ada")
        await other.next("registered")
        sole = it.worker(for_configmaps(worker="sole"), token="ada")
        await sole.say(resume=pb.Resume(sole=True))
        error = await sole.refused()
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED and "Resume.sole" in (error.details() or "")
        assert not other.ended and not sole.of("resumed")

        sole = it.worker(for_configmaps(worker="sole", leaving_clusters=True), token="bob")
        await sole.say(resume=pb.Resume(sole=True))
        await sole.next("resumed")
        assert (await other.refused()).code() == grpc.StatusCode.ABORTED
        # A right that is taken away is missed while the stream lasts, too.
        leads.clear()
        it.server.access._decisions = type(it.server.access._decisions)()
        error = await sole.refused()
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED and "lead" in (error.details() or "")


async def test_a_worker_name_is_one_identitys() -> None:
    async with rig("east") as it:
        host = it.clusters.clusters[""]
        host.tokens.update(one={"username": "ada"}, two={"username": "bob"})
        first = it.worker(for_configmaps(worker="w"), token="one")
        await first.next("registered")
        error = await it.worker(for_configmaps(worker="w"), token="two").refused()
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "worker" in violations(error)
        await first.close()


def test_certificates_name_users_and_groups() -> None:
    from services.common.errors import StatusError
    from tests.integration.work_certs import certificate

    user = by_certificate(certificate("ada", "dev", "ops"))
    assert (user.name, user.groups) == ("ada", ("dev", "ops", "system:authenticated"))
    with pytest.raises(StatusError):
        by_certificate(certificate("", "dev"))


@pytest.mark.parametrize("name", ["reclock-sinker", "ada"])
async def test_over_mutual_tls_services_alone_are_workers(tmp_path: Path, name: str) -> None:
    from services.common.config import TLS
    from tests.unit.kube_fake import make_ca, make_pair, pem

    key, ca = make_ca()
    (tmp_path / "ca").write_bytes(pem(ca))
    cert, private = make_pair(key, "ca", name)
    (tmp_path / "crt").write_bytes(cert)
    (tmp_path / "key").write_bytes(private)
    tls = TLS(cert=str(tmp_path / "crt"), key=str(tmp_path / "key"), ca=str(tmp_path / "ca"))
    socket = f"unix:{tmp_path}/work"
    async with rig("east", tls=tls, socket=socket, local={"groups": []}) as it:
        host = it.clusters.clusters[""]
        host.allow = lambda spec: spec["user"] == name
        host.tokens["t"] = {"username": "bob"}
        if name == "ada":
            error = await it.worker(for_configmaps(), token="t").refused()
            assert error.code() == grpc.StatusCode.PERMISSION_DENIED and "at userAddress" in (error.details() or "")
            return
        worker = it.worker(for_configmaps())
        await worker.next("registered")
        assert {review["user"] for review in host.reviews} == {name}
        error = await it.worker(for_configmaps("d"), token="t").refused()
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED and "'bob'" in (error.details() or "")
        await worker.close()
        # Over the socket no certificate is asked for: this process's own worker has a token, others are of this machine.
        async with grpc.aio.insecure_channel(socket) as chan:
            error = await Worker(rpc.ReconcilerServiceStub(chan), for_configmaps("d")).refused()
            assert "'reclock:local'" in (error.details() or "")
            own = Worker(rpc.ReconcilerServiceStub(chan), for_configmaps("d"), it.work.token)
            await own.next("registered")
            await own.close()


async def test_the_newest_registration_counts_and_unchanged_sources_go_on() -> None:
    async with rig("east") as it:
        east = it.clusters.clusters["east"]
        east.put("configmaps", "a", "old")
        worker = it.worker(for_configmaps())
        [request] = await worker.requests(1)
        await worker.done(request)
        pods = pb.Source(version="v1", resource="pods", for_object=pb.ForObject())
        east.put("pods", "a", "pod")
        lists = len(east.queries)
        newer = it.worker(for_configmaps(sources=[CONFIGMAPS, pods]))
        await worker.until(lambda: worker.of("request")[1:] or newer.of("request"))
        assert [each.name for each in (*worker.of("request")[1:], *newer.of("request"))] == ["pod"]
        await asyncio.sleep(0.2)
        assert len(east.queries) == lists + 2  # pods: a list and a watch; ConfigMaps as they were
        await worker.close()
        await newer.close()


async def test_the_mode_does_not_change_under_other_workers() -> None:
    async with rig("east") as it:
        worker = it.worker(for_configmaps())
        await worker.next("registered")
        error = await it.worker(for_configmaps(mode=pb.MODE_PRIORITY_FIRST)).refused()
        assert "mode" in violations(error)
        await worker.close()
        alone = it.worker(for_configmaps(mode=pb.MODE_PRIORITY_FIRST))
        await alone.next("registered")
        await alone.close()


async def test_what_cannot_be_followed_later_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.reconciler.work import controller

    monkeypatch.setattr(controller, "PROBLEMS_EVERY", 0.05)
    async with rig("east") as it:
        it.clusters.add("west").lacks.add("configmaps")
        worker = it.worker(for_configmaps())
        await it.synced()
        await it.join("west")
        problem = await worker.next("problem")
        assert problem.code == pb.PROBLEM_CODE_SOURCE and "cluster west: configmaps" in problem.message
        await asyncio.sleep(0.3)
        assert len(worker.of("problem")) == 1
        await worker.close()
