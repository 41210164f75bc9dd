"""Creates: claims, names, namespaces, dry runs, and where the object goes."""

from __future__ import annotations

import time
from typing import Any

import aiohttp
import pytest
from writes_fake import NAMESPACE, PODS, FakeClaim, World, call, pod, refused

from services.aggregator.types import Aggregated
from services.aggregator.writes import create, namespaces
from services.aggregator.writes.body import Envelope
from services.common import errors
from services.common.errors import MemberUnreachable, StatusError

POST = ("POST", "/api/v1/namespaces/ns/pods")
PATH = "/api/v1/namespaces/ns/pods"
MADE = pod(uid="u1", resourceVersion="17")


@pytest.fixture
def world() -> World:
    return World()


async def post(world: World, body: Any = None, query: str = "", aggregated: Aggregated = PODS) -> Any:
    return await create.create(world.context, call("POST", PATH + query, body or pod()), aggregated)


def lost() -> MemberUnreachable:
    """The answer did not come: what the member did is not known."""
    return MemberUnreachable("cluster east: no answer in time")


def not_connected() -> StatusError:
    key: Any = None
    return errors.from_client_error(aiohttp.ClientConnectorError(key, OSError(111, "refused")), "cluster east")


ROUTED = {"reclock.dev/routed": "fleet"}


async def test_goes_where_the_scheduler_says_and_the_claim_goes_with_the_outcome(world: World) -> None:
    world.east.answers[POST] = MADE
    answer = await post(world)
    assert answer.status == 200 and world.east.sent("POST") == [pod(labels=ROUTED)] and not world.west.asked
    assert [claim.released for claim in world.clock.claims] == [True]


async def test_candidates_are_selected_and_serve_the_type(world: World) -> None:
    world.east.answers[POST] = MADE
    world.clock.members["west"].serves = False
    await post(world)
    assert list(world.places[0].candidates) == ["east"]
    world.clock.members["east"].serves = False
    assert (await refused(lambda: post(world))).code == 503


@pytest.mark.parametrize("error", [lost(), errors.internal("etcd"), errors.timeout("slow"), errors.unavailable("busy")])
async def test_lost_answer_keeps_the_claim(world: World, error: StatusError) -> None:
    world.east.answers[POST] = error
    assert (await refused(lambda: post(world))).code >= 500
    assert not world.clock.claims[0].released
    assert world.clock.claims[0].left, "a retry that comes at once must get it"


@pytest.mark.parametrize("error", [not_connected(), errors.not_found("pods", "web"), errors.unavailable("lags behind")])
async def test_what_fails_after_the_create_is_not_the_creates_own(world: World, monkeypatch: pytest.MonkeyPatch, error: StatusError) -> None:
    """The member made it; that the connection fails when it is to be shown does not mean that nothing was sent."""
    world.east.answers[POST] = MADE

    async def fails(*_: Any, **__: Any) -> bytes:
        raise error

    monkeypatch.setattr(world.context.reads, "show", fails)
    seen = await refused(lambda: post(world))
    assert (seen.code, seen.reason, seen.retry_after) == (504, "Timeout", None) and "was done" in seen.message
    assert not world.clock.claims[0].released and world.clock.claims[0].left


@pytest.mark.parametrize("error", [not_connected(), errors.MemberAway("cluster east cannot be reached"), errors.invalid("no"), errors.too_many_requests("later")])
async def test_known_outcome_releases_the_claim(world: World, error: StatusError) -> None:
    world.east.answers[POST] = error
    await refused(lambda: post(world))
    assert world.clock.claims[0].released


async def test_retry_goes_to_the_claimed_member(world: World) -> None:
    """The first try's object may be there: the scheduler's new choice would make a second one."""
    world.picked = "west"
    world.clock.held = FakeClaim("east", earlier=True, since=time.time())
    world.east.answers[POST] = errors.already_exists("pods", "web")
    assert (await refused(lambda: post(world))).reason == "AlreadyExists"
    assert world.east.sent("POST") and not world.west.sent("POST") and world.clock.held.released


async def test_retry_whose_member_is_away_waits(world: World) -> None:
    world.picked = "west"
    world.clock.held = FakeClaim("east", earlier=True, since=time.time())
    world.east.answers[POST] = not_connected()
    assert (await refused(lambda: post(world))).code == 503
    assert not world.west.sent("POST") and not world.clock.held.released


async def test_refusal_of_a_retry_says_nothing_of_the_first_try(world: World) -> None:
    world.clock.held = FakeClaim("east", earlier=True, since=time.time())
    world.east.answers[POST] = errors.invalid("another body")
    await refused(lambda: post(world))
    assert not world.clock.held.released


async def test_old_claim_moves_once_its_member_is_known_not_to_have_the_object(world: World) -> None:
    world.picked = "west"
    world.clock.held = FakeClaim("east", earlier=True, since=time.time() - 1000)
    world.west.answers[POST] = MADE
    await post(world)
    assert world.east.asked == [("GET", PATH + "/web", None)]
    assert world.west.sent("POST") and world.clock.held.cluster == "west" and world.clock.held.released


async def test_old_claim_stays_while_its_member_is_away(world: World) -> None:
    world.picked = "west"
    world.clock.held = FakeClaim("east", earlier=True, since=time.time() - 1000)
    world.east.answers[("GET", PATH + "/web")] = lost()
    assert (await refused(lambda: post(world))).code == 503
    assert not world.west.asked and not world.clock.held.released


async def test_claim_of_a_cluster_that_left_the_fleet_moves(world: World) -> None:
    world.clock.held = FakeClaim("gone", earlier=True, since=time.time())
    world.east.answers[POST] = MADE
    await post(world)
    assert world.clock.held.cluster == "east" and world.clock.held.released


async def test_fault_17_name_that_is_taken_is_refused_without_asking_anybody(world: World) -> None:
    world.clock.put("west", "web", "u0")
    assert (await refused(lambda: post(world))).reason == "AlreadyExists"
    assert not world.places and not world.east.asked


async def test_generated_name_that_is_taken_is_tried_again(world: World) -> None:
    world.east.answers[POST] = [errors.already_exists("pods", "web-x"), MADE]
    await post(world, {"metadata": {"generateName": "web-"}})
    names = [sent["metadata"]["name"] for sent in world.east.sent("POST")]
    assert len(set(names)) == 2 and all(name.startswith("web-") for name in names)


async def test_generated_name_keeps_no_claim(world: World) -> None:
    """Nobody will ever ask for that name again."""
    world.east.answers[POST] = lost()
    await refused(lambda: post(world, {"metadata": {"generateName": "web-"}}))
    assert world.clock.claims[0].released


async def test_missing_namespace_is_made_with_the_hosts_finalizer_first(world: World) -> None:
    missing = errors.not_found("namespaces", "ns")
    world.east.answers[POST] = [missing, MADE]
    finalized = NAMESPACE
    world.host.answers[("GET", "/api/v1/namespaces/ns")] = {"metadata": {**NAMESPACE["metadata"], "finalizers": []}}
    world.host.answers[("PATCH", "/api/v1/namespaces/ns")] = [
        errors.conflict("namespaces", "ns", "changed"), finalized,
    ]  # fmt: skip
    world.east.answers[("POST", "/api/v1/namespaces")] = errors.already_exists("namespaces", "ns")
    await post(world)
    assert len(world.host.sent("PATCH")) == 2, "a conflict on the host's namespace is tried again"
    made = world.east.sent("POST", "/api/v1/namespaces")[1]
    assert made["metadata"]["labels"] == {"team": "a", "reclock.dev/origin": "fleet"}
    assert made["metadata"]["annotations"] == {"reclock.dev/host-uid": "ns-uid"}


async def test_namespace_that_cannot_be_made_releases_the_claim(world: World) -> None:
    world.east.answers[POST] = errors.not_found("namespaces", "ns")
    world.host.answers[("PATCH", "/api/v1/namespaces/ns")] = lost()
    await refused(lambda: post(world))
    assert world.clock.claims[0].released


async def test_namespace_that_goes_is_refused_with_its_cause(world: World) -> None:
    going = {"metadata": {**NAMESPACE["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    world.host.answers[("GET", "/api/v1/namespaces/ns")] = going
    error = await refused(lambda: post(world))
    assert error.code == 403 and error.details is not None
    assert error.details["causes"][0]["reason"] == "NamespaceTerminating"
    world.host.answers.clear()
    error = await refused(lambda: post(world))
    assert (error.code, error.message) == (404, 'namespaces "ns" not found')


async def test_dry_run_leaves_nothing_behind(world: World) -> None:
    world.east.answers[POST] = errors.not_found("namespaces", "ns")
    world.host.answers[POST] = pod(uid="u1")
    asked = call("POST", PATH + "?dryRun=All", pod())
    await create.create(world.context, asked, PODS)
    assert not world.clock.claims and not world.host.sent("PATCH")
    assert not world.east.sent("POST", "/api/v1/namespaces/ns/pods")[1:] and len(world.east.asked) == 1
    assert "dry run" in asked.warnings[0]


async def test_pod_that_names_what_the_member_lacks_gets_a_warning(world: World) -> None:
    world.east.answers[POST] = MADE
    world.east.answers[("GET", "/api/v1/namespaces/ns/secrets/there")] = {"metadata": {}}
    spec = {
        "serviceAccountName": "robot",
        "volumes": [{"secret": {"secretName": "there"}}, {"configMap": {"name": "maybe", "optional": True}},
                    {"projected": {"sources": [{"configMap": {"name": "projected"}}]}}],
        "containers": [{"envFrom": [{"configMapRef": {"name": "settings"}}],
                        "env": [{"valueFrom": {"secretKeyRef": {"name": "password", "key": "k"}}}]}],
    }  # fmt: skip
    asked = call("POST", PATH, {**pod(), "spec": spec})
    await create.create(world.context, asked, PODS)
    (text,) = asked.warnings
    for wanted in ("'robot'", "'projected'", "'settings'", "'password'", "/clusters/east"):
        assert wanted in text
    assert "there'" not in text and "maybe" not in text


async def test_pod_that_needs_nothing_costs_no_look_ups(world: World) -> None:
    world.east.answers[POST] = MADE
    await post(world, {**pod(), "spec": {"serviceAccountName": "default", "containers": [{}]}})
    assert [method for method, _, _ in world.east.asked] == ["POST"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (pod(resourceVersion="5"), 400),
        ({"metadata": {}}, 422),
        ({"metadata": {"name": "web", "namespace": "other"}}, 400),
        (b"no json", 400),
    ],
)
async def test_bodies_that_are_refused(world: World, body: Any, code: int) -> None:
    assert (await refused(lambda: post(world, body))).code == code
    assert not world.clock.claims


async def test_types_that_are_not_created_here(world: World) -> None:
    reject = Aggregated("nodes", "", "v1", "pods", "Pod", namespaced=True, create="Reject")
    assert (await refused(lambda: post(world, aggregated=reject))).code == 405


async def test_host_makes_names_itself(world: World) -> None:
    at_host = Aggregated("events", "", "v1", "pods", "Pod", namespaced=True, create="Host")
    world.host.answers[POST] = MADE
    await post(world, {"metadata": {"generateName": "e-"}}, aggregated=at_host)
    assert world.host.sent("POST") == [{"metadata": {"generateName": "e-"}}] and not world.places


async def test_owners_on_two_clusters_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create, "fixed_clusters", lambda *_: {"east", "west"})
    assert (await refused(lambda: post(world))).code == 422
    monkeypatch.setattr(create, "fixed_clusters", lambda *_: {"west"})
    world.west.answers[POST] = MADE
    await post(world)
    assert world.west.sent("POST") and not world.places


def test_a_new_try_that_was_not_sent_is_settled() -> None:
    new = create.New(call("POST", PATH), PODS, Envelope(), "ns", "web", b"")
    fresh: Any = FakeClaim("east", earlier=False, since=0)
    assert create.is_settled(new, fresh, lost())
    new.sent = True
    assert not create.is_settled(new, fresh, lost())


def test_only_a_missing_namespace_is_one() -> None:
    assert namespaces.lacks_namespace(errors.not_found("namespaces", "ns"))
    assert not namespaces.lacks_namespace(errors.not_found("pods", "web"))
    assert not namespaces.lacks_namespace(StatusError(404, "NotFound", "no such page"))


async def test_the_hosts_namespace_waits_for_what_is_created_on_members(world: World) -> None:
    """Also in a namespace that the member had already: the create succeeds there at once."""
    world.east.answers[POST] = MADE
    bare = {"metadata": {**NAMESPACE["metadata"], "finalizers": []}}
    world.host.answers[("GET", "/api/v1/namespaces/ns")] = bare
    world.host.answers[("PATCH", "/api/v1/namespaces/ns")] = NAMESPACE
    await post(world)
    assert [body["metadata"]["finalizers"] for body in world.host.sent("PATCH")] == [["reclock.dev/members"]]


async def test_name_of_an_object_that_its_member_has_deleted_is_free(world: World) -> None:
    """The answer to a deletion may come before the member told of its end."""
    world.clock.put("east", "web", "old", deleting=True)
    world.east.answers[POST] = MADE
    await post(world)
    assert world.clock.deletions == [("east", "old")] and world.east.sent("POST")


async def test_name_of_an_object_that_is_still_being_deleted_is_taken(world: World) -> None:
    world.clock.put("east", "web", "old", deleting=True)
    world.east.answers["GET", f"{POST[1]}/web"] = {"metadata": {"name": "web", "uid": "old"}}
    assert (await refused(lambda: post(world))).reason == "AlreadyExists"
    assert not world.east.sent("POST")
