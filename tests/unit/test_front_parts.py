"""Small parts of the front: errors, cache, limits, notices, health, certificates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp.http_exceptions import LineTooLong

from deploy.local.pki import Authority
from services.aggregator.config import Limits
from services.aggregator.front import errors
from services.aggregator.front.authz import Attributes, forbidden_error
from services.aggregator.front.certificates import Authorities
from services.aggregator.front.connections import Book
from services.aggregator.front.dispatch import Dispatch
from services.aggregator.front.health import is_public, marked
from services.aggregator.front.limits import InFlight
from services.aggregator.front.members import object_name
from services.aggregator.front.notices import is_service, may_create, notice, notice_of_service
from services.aggregator.front.server import warning
from services.aggregator.types import Call, RequestInfo
from services.common.cache import LoadingCache
from services.common.errors import StatusError
from services.common.kube.reviews import User


def made_call() -> Call:
    request: Any = None
    return Call(request, RequestInfo("create", "/api/v1/namespaces/a/pods", True), User("a"))


def test_an_unknown_error_shows_an_id_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    answer = errors.response(errors.from_exception(KeyError("secret detail"), "GET /x"))
    body = json.loads(answer.body)  # type: ignore[arg-type]
    assert (answer.status, body["reason"]) == (500, "InternalError")
    assert "secret" not in body["message"]
    identifier = body["message"].split("id ")[1].split(" ")[0]
    assert identifier in caplog.text and "secret detail" in caplog.text


def test_hints_and_challenges_are_headers() -> None:
    assert errors.response(StatusError(503, retry_after=4)).headers["Retry-After"] == "4"
    assert "WWW-Authenticate" in errors.response(StatusError(401)).headers
    assert errors.from_protocol(LineTooLong("x", "1"), 400).code == 431


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (Attributes("get", "/metrics"), 'forbidden: User "bob" cannot get path "/metrics"'),
        (
            Attributes("list", group="apps", resource="deployments"),
            'deployments.apps is forbidden: User "bob" cannot list resource "deployments" in API group "apps" at the cluster scope',
        ),
        (
            Attributes("get", resource="pods", subresource="log", namespace="a", name="web"),
            'pods "web" is forbidden: User "bob" cannot get resource "pods/log" in API group "" in the namespace "a"',
        ),
    ],
)
def test_refusals_are_worded_like_kubernetes(what: Attributes, says: str) -> None:
    assert forbidden_error(User("bob"), what).message == says


async def test_concurrent_misses_share_one_load_and_failures_are_not_kept() -> None:
    cache: LoadingCache[str, int] = LoadingCache()
    loads = 0
    gate = asyncio.Event()

    def loader(fail: bool) -> Callable[[], Awaitable[tuple[int, float]]]:
        async def load() -> tuple[int, float]:
            nonlocal loads
            loads += 1
            await gate.wait()
            if fail:
                raise StatusError(503)
            return 7, 60.0

        return load

    waiting = [asyncio.create_task(cache.get("k", loader(True))) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # the one that started the load leaves; the others still get its outcome
    gate.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert isinstance(outcomes[1], StatusError) and isinstance(outcomes[2], StatusError)
    assert await cache.get("k", loader(False)) == 7 == cache.peek("k")
    assert await cache.get("k", loader(True)) == 7
    assert loads == 2


async def test_a_full_cache_drops_old_values() -> None:
    cache: LoadingCache[int, int] = LoadingCache(limit=10)

    def loader(value: int) -> Callable[[], Awaitable[tuple[int, float]]]:
        async def load() -> tuple[int, float]:
            return value, 60.0

        return load

    for number in range(25):
        await cache.get(number, loader(number))
    held = [number for number in range(25) if cache.peek(number) is not None]
    assert len(held) <= 10 and 24 in held and 0 not in held


def test_limits_count_per_user_and_kind() -> None:
    flights = InFlight(Limits(requests=1, streams=1))
    one = made_call()
    with flights.enter("a", "request", one), flights.enter("a", "stream", one), flights.enter("b", "request", one):
        with pytest.raises(StatusError) as refused, flights.enter("a", "request", one):
            pass
        assert (refused.value.code, refused.value.retry_after) == (429, 1)
    with flights.enter("a", "request", one):
        assert flights._counts == {("a", "request"): 1}
    assert flights._counts == {}


async def test_a_write_whose_client_has_left_is_in_flight_to_its_end() -> None:
    """Else who hangs up at once could have any number of them under way."""
    nothing: Any = None
    dispatch = Dispatch(
        host=nothing, authorizer=nothing, members=nothing, documents=nothing, health=nothing, aggregations=nothing,
        reads=nothing, writes=nothing, version_markers=nothing, pages=None,
    )  # fmt: skip
    flights, done, begun = InFlight(Limits(requests=1)), asyncio.Event(), asyncio.Event()

    async def write(*_: Any) -> Any:
        begun.set()
        await done.wait()

    async def serve() -> None:
        call = made_call()
        with flights.enter("a", "request", call):
            await dispatch._shielded(write, call, nothing)

    client = asyncio.create_task(serve())
    await begun.wait()
    client.cancel()
    await asyncio.wait([client])
    with pytest.raises(StatusError), flights.enter("a", "request", made_call()):
        pass
    done.set()
    await dispatch.drain(5)
    await asyncio.sleep(0)
    with flights.enter("a", "request", made_call()):
        pass
    assert flights._counts == {}


def test_notices_are_for_what_may_create() -> None:
    quota = RequestInfo("create", "/", True, "", "v1", "resourcequotas", "", "a")
    assert "next step" in str(notice(quota))
    applied = RequestInfo("patch", "/", True, "autoscaling", "v2", "horizontalpodautoscalers", "", "a", "h")
    assert "kubectl scale" in str(notice(applied, "application/apply-patch+yaml"))
    assert notice(applied, "application/merge-patch+json") is None
    assert notice(RequestInfo("update", "/", True, "", "v1", "resourcequotas", "", "a", "q")) is None
    assert notice(RequestInfo("create", "/", True, "apps", "v1", "deployments", "", "a")) is None


@pytest.mark.parametrize("body", [
    b'{"kind":"Service","spec":{"type":"LoadBalancer"}}', b'{"spec": {\n  "type": "LoadBalancer"\n}}',
    b"kind: Service\nspec:\n  type: LoadBalancer\n", b"spec: {type: 'LoadBalancer'}",
    b'k8s\0\n\r\n\x02v1\x12\x07Service\x12\x20\n\x05\n\x03web"\x0cLoadBalancer',
])  # fmt: skip
def test_service_that_asks_for_a_load_balancer_is_noticed(body: bytes) -> None:
    assert "<pending>" in str(notice_of_service(body))


@pytest.mark.parametrize("body", [
    None, b"", b'{"spec":{"type":"ClusterIP"}}', b'{"spec":{"ports":[]}}', b'{"metadata":{"labels":{"a":"LoadBalancer"}}}',
    b'{"metadata":{"annotations":{"was":"{\\"spec\\":{\\"type\\":\\"LoadBalancer\\"}}"}},"spec":{"type":"NodePort"}}',
    b'k8s\0\n\x03web"\x08NodePort:\x0cLoadBalancer',
])  # fmt: skip
def test_other_services_are_stored_without_a_word(body: bytes | None) -> None:
    assert notice_of_service(body) is None


def test_what_may_create_a_service() -> None:
    create = RequestInfo("create", "/", True, "", "v1", "services", "", "a")
    assert is_service(create) and may_create(create)
    assert not may_create(RequestInfo("create", "/", True, "", "v1", "services", "proxy", "a", "web"))
    assert not may_create(RequestInfo("update", "/", True, "", "v1", "services", "", "a", "web"))


def test_warnings_are_quoted() -> None:
    assert warning('say "x"\r\nInjected: 1\\') == '299 - "say \\"x\\"Injected: 1\\\\"'


def test_version_mark() -> None:
    assert marked({"gitVersion": "v1.34.4"})["gitVersion"] == "v1.34.4+reclock"
    assert marked({"gitVersion": "v1.34.4+k3s1", "major": "1"}) == {"gitVersion": "v1.34.4+k3s1.reclock", "major": "1"}


def test_public_paths() -> None:
    assert is_public("/readyz/etcd") and is_public("/version")
    assert not is_public("/versions") and not is_public("/healthzz") and not is_public("/metrics")


def test_names_of_the_proxy_subresource() -> None:
    assert [object_name(name) for name in ("web", "web:80", "https:web:443", "https:web:")] == ["web"] * 4


def test_the_issuer_decides_whether_a_certificate_is_a_users_or_a_proxys(tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    users, proxies = Authority(tmp_path / "u", "users"), Authority(tmp_path / "p", "proxies")
    both = Authorities(str(users.pair.cert), str(proxies.pair.cert), ("front-proxy",))

    def shown(authority: Authority, name: str, groups: list[str]) -> tuple[dict[str, object], bytes]:
        pair = authority.client(name, groups)
        der = x509.load_pem_x509_certificate(pair.cert.read_bytes()).public_bytes(Encoding.DER)
        subject = (*((("organizationName", group),) for group in groups), (("commonName", name),))
        return {"subject": subject, "notAfter": "Jan  1 00:00:00 2100 GMT"}, der

    alice = both.peer(*shown(users, "alice", ["dev", "ops"]))
    assert alice is not None and alice.user is not None and alice.valid() and not alice.proxy
    assert (alice.user.name, alice.user.groups) == ("alice", ("dev", "ops", "system:authenticated"))
    assert alice.user.extra[0][1][0].startswith("X509SHA256=")
    proxy = both.peer(*shown(proxies, "front-proxy", []))
    assert proxy is not None and proxy.proxy and proxy.user is None
    assert both.peer(*shown(proxies, "another", [])) is None
    stranger = Authority(tmp_path / "s", "users")
    assert both.peer(*shown(stranger, "alice", [])) is None
    certificate, der = shown(users, "alice", [])
    expired = both.peer({**certificate, "notAfter": "Jan  1 00:00:00 2020 GMT"}, der)
    assert expired is not None and not expired.valid()


def test_a_connection_that_broke_is_not_idle_afterwards() -> None:
    """Its last answer ends after it: kept as idle it would be ended for others again and again, and for ever."""
    book = Book(Limits(connections=1, unauthenticated=2))
    slot, other = book.enter(), book.enter()
    assert slot is not None and other is not None
    assert slot.vouch() and not other.vouch()
    slot.release()
    slot.rests()
    assert not book.idle
    assert other.vouch(), "its place is free"
    ended: list[str] = []
    other.end = lambda: ended.append("other")
    other.rests()
    third = book.enter()
    assert third is not None and third.vouch() and ended == ["other"]
