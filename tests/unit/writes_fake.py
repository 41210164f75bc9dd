"""Clusters, a clock and a scheduler for tests of writes: scripted answers, and a record of what was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from services.aggregator.front.request_info import parse
from services.aggregator.reads.presenter import Presenter
from services.aggregator.reads.representations import Representations
from services.aggregator.types import Aggregated, Call
from services.common import errors
from services.common.errors import StatusError
from services.common.kube.client import MAX_ANSWER, Response
from services.common.kube.objects import ObjectApi
from services.common.kube.reviews import User

Object = dict[str, Any]
PODS = Aggregated("pods", "", "v1", "pods", "Pod", namespaced=True)
NAMESPACE = {"metadata": {"name": "ns", "uid": "ns-uid", "resourceVersion": "7", "labels": {"team": "a"},
                          "finalizers": ["reclock.dev/members"]}}  # fmt: skip


def pod(name: str = "web", **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", **metadata}}


def answer(obj: Any, status: int = 200, *warnings: str) -> Response:
    headers = CIMultiDict([("Warning", text) for text in warnings])
    return Response(status, CIMultiDictProxy(headers), msgspec.json.encode(obj))


class FakeCluster(ObjectApi):
    """Answers (method, path) by what a test put in `answers`: an object, an error, or a list of them in turn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: dict[tuple[str, str], Any] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.queries: list[Any] = []
        self.users: list[str] = []
        self.audit_ids: list[str] = []

    @property
    def label(self) -> str:
        return self.name

    async def look(self) -> StatusError | None:
        return None  # it answers, whatever is known of it

    def sent(self, method: str, path: str = "") -> list[Any]:
        """Bodies of the requests so far."""
        return [body for m, p, body in self.asked if m == method and p.startswith(path)]

    async def request(
        self, method: str, path: str, *, query: Any = None, body: bytes | None = None,
        headers: Mapping[str, str] | None = None, timeout: float = 30, check: bool = True,
        longest: int = MAX_ANSWER,
    ) -> Response:  # fmt: skip
        self.asked.append((method, path, msgspec.json.decode(body) if body else None))
        self.queries.append(query)
        self.users.append((headers or {}).get("Impersonate-User", ""))
        self.audit_ids.append((headers or {}).get("Audit-Id", ""))
        found = self.answers.get((method, path))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(found, BaseException):
            raise found
        if found is None:
            raise errors.not_found("things", path.rpartition("/")[2])
        return found if isinstance(found, Response) else answer(found)


class FakeClaim:
    """A claim as the clock gives it."""

    def __init__(self, cluster: str, *, earlier: bool, since: float) -> None:
        self.cluster, self.earlier, self.since = cluster, earlier, since
        self.released = self.left = False

    def leave(self) -> None:
        self.left = True

    async def move(self, cluster: str) -> None:
        self.cluster, self.earlier = cluster, False

    async def release(self) -> None:
        self.released = True


class FakeClock:
    """Markers by key, members, and what was waited for."""

    def __init__(self, members: Mapping[str, FakeCluster]) -> None:
        self.aggregated = PODS
        self.head = 1000
        self.markers: dict[tuple[str, str], list[Any]] = {}
        self.members = {
            name: SimpleNamespace(cluster=name, client=one, serves=True, state="Live")
            for name, one in members.items()
        }
        self.claims: list[FakeClaim] = []
        self.held: FakeClaim | None = None
        self.deletions: list[tuple[str, str]] = []
        self.versions: list[int] = []
        self.refuses = ""

    def require_writable(self) -> None:
        if self.refuses:
            raise errors.unavailable(self.refuses, retry_after=2)

    def put(
        self, cluster: str, name: str, uid: str, *, version: int = 17, fleet: int = 640, deleting: bool = False
    ) -> None:
        """A live object; of several of one name the first is shown."""
        marker = SimpleNamespace(
            cluster=cluster, namespace="ns", name=name, uid=uid, version=version, fleet=fleet, deleted=False,
            deleting=deleting, labels={},
        )
        self.markers.setdefault(("ns", name), []).append(marker)

    async def wait_gone(self, marker: Any) -> None:
        self.deletions.append((marker.cluster, marker.uid))
        self.markers.pop((marker.namespace, marker.name))

    def shown(self, namespace: str, name: str) -> Any:
        return next(iter(self.markers.get((namespace, name), [])), None)

    def marker(self, cluster: str, namespace: str, name: str) -> Any:
        return next((m for m in self.markers.get((namespace, name), []) if m.cluster == cluster), None)

    def is_clash(self, namespace: str, name: str) -> bool:
        return len(self.markers.get((namespace, name), [])) > 1

    def iter_markers(self, namespace: str = "") -> list[Any]:
        return [marker for markers in self.markers.values() for marker in markers]

    def counts(self) -> Any:
        return SimpleNamespace(clashes=sum(len(found) - 1 for found in self.markers.values()))

    async def snapshot(self, **_: Any) -> Any:
        return SimpleNamespace(version=self.head)

    async def claim(self, namespace: str, name: str, cluster: str) -> FakeClaim:
        claim = self.held or FakeClaim(cluster, earlier=False, since=0)
        self.claims.append(claim)
        return claim

    async def wait_deleted(
        self, cluster: str, namespace: str, name: str, uid: str, timeout: float = 5, *, version: int = 0
    ) -> None:
        self.deletions.append((cluster, uid))

    async def wait_version(
        self, cluster: str, namespace: str, name: str, uid: str, version: int, timeout: float = 5
    ) -> Any:
        self.versions.append(version)
        return self.marker(cluster, namespace, name)


class FakeOwners:
    """Copies by host uid."""

    def __init__(self) -> None:
        self.copies: dict[str, str] = {}

    async def copy_uid(self, cluster: str, owner: Any, namespace: str) -> str | None:
        return self.copies.get(owner.uid)

    def incoming(self, cluster: str) -> dict[str, str]:
        return self.copies

    def object_uids(self, cluster: str) -> dict[str, str]:
        return {member: host for host, member in self.copies.items()}

    async def resolve(self, cluster: str, owners: Any, namespace: str) -> dict[str, str | None]:
        return {}


class World:
    """Two members, a host, and the context that writes get."""

    def __init__(self) -> None:
        self.east, self.west, self.host = FakeCluster("east"), FakeCluster("west"), FakeCluster("host")
        self.clock = FakeClock({"east": self.east, "west": self.west})
        self.owners = FakeOwners()
        self.picked = "east"
        self.places: list[Any] = []
        self.paths: list[str] = []
        self.host.answers[("GET", "/api/v1/namespaces/ns")] = NAMESPACE
        self.context: Any = SimpleNamespace(
            host=self.host,
            fleet=SimpleNamespace(synced=SimpleNamespace(is_set=lambda: True)),
            fleet_id="fleet",
            clock=SimpleNamespace(get=lambda group, resource: self.clock),
            aggregations=SimpleNamespace(lookup_kind=lambda api, kind: None),
            owners=self.owners,
            reads=SimpleNamespace(show=self._show, present=self._present, write_form=Representations().of_write),
            placement=SimpleNamespace(PlaceObject=self._place),
            identity=lambda call, aggregated: {},
        )

    async def _place(self, request: Any, timeout: float) -> Any:
        self.places.append(request)
        return SimpleNamespace(cluster=self.picked, fits=True, verdicts=[])

    async def _show(self, clock: Any, cluster: str, body: bytes, accept: str = "", *, path: str = "") -> bytes:
        """As shown: the fleet's number instead of the member's."""
        self.paths.append(path)
        obj = msgspec.json.decode(body)
        marker = self.clock.marker(cluster, "ns", obj["metadata"]["name"])
        obj["metadata"]["resourceVersion"] = str(marker.fleet if marker else 640)
        obj["metadata"].setdefault("annotations", {})["reclock.dev/cluster"] = cluster
        return msgspec.json.encode(obj)


    async def _present(self, aggregated: Any, cluster: str, body: bytes, meta: Any, version: int) -> bytes:
        return await Presenter(cast(Any, self.owners), aggregated).resolve(cluster, body, meta, version, meta.end)


def call(method: str, path: str, body: Any = None, content_type: str = "application/json") -> Call:
    url = URL(path)
    raw = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)

    async def read() -> bytes:
        return raw

    request: Any = SimpleNamespace(
        method=method, rel_url=url, read=read, headers=CIMultiDict({"Content-Type": content_type})
    )
    return Call(request, parse(method, url.raw_path, url.raw_query_string), User("tester"), audit_id="id-1")


async def refused(run: Callable[[], Any]) -> StatusError:
    """The error of what must fail."""
    try:
        await run()
    except StatusError as error:
        return error
    raise AssertionError("it was accepted")
