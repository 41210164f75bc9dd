"""One simulated cluster: requests in, answers out; faults; lives, backups and history that tests turn at will."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from deploy.local.sim import discovery, openapi, rbac
from deploy.local.sim.bootstrap import bootstrap
from deploy.local.sim.catalog import Catalog
from deploy.local.sim.controllers.manager import Manager
from deploy.local.sim.controllers.namespaces import Namespaces
from deploy.local.sim.controllers.nodes import node_object
from deploy.local.sim.controllers.sets import BY_NAME
from deploy.local.sim.core import Core, User
from deploy.local.sim.deletes import NO_OPTIONS, Options, delete
from deploy.local.sim.errors import Refused, no_such_resource
from deploy.local.sim.faults import Faults, Rule
from deploy.local.sim.handler import Handler
from deploy.local.sim.objects import encode, loaded
from deploy.local.sim.patches import merge_patch
from deploy.local.sim.reads import Page, list_page, make_filter
from deploy.local.sim.represent import error_bytes
from deploy.local.sim.requests import ADMIN, Answer, Request, Response, WatchResponse, parse_target
from deploy.local.sim.store import Backup, State, Store
from deploy.local.sim.timers import Timers
from deploy.local.sim.types import Object, ResourceType
from deploy.local.sim.watches import Watch, open_watch
from deploy.local.sim.writes import Writing, create, replace, update

VERSION = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.4+sim",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
_HEALTH = ("/healthz", "/livez", "/readyz")


class Cluster:
    """Made by `World.add`. All of it is synchronous; time is the world's."""

    def __init__(
        self,
        name: str,
        timers: Timers,
        source: random.Random,
        *,
        authority: str = "",
        managed_fields: bool = True,
        history: int = 10_000,
        first_revision: int = 1,
        nodes: int = 0,
        role: str = "member",
    ) -> None:
        self.name = name
        self.nodes = nodes
        self.authority = authority
        self.server = "127.0.0.1"
        self.healthy = True
        self.lives = 0
        self._history = history
        self._first_revision = first_revision
        self.core = Core(name, timers, source, managed_fields=managed_fields)
        self.faults = Faults(random.Random(source.getrandbits(64)))
        self.watches: set[Watch] = set()
        self.requests = 0
        self.kept: Backup | None = None
        """The backup that the admin endpoint took last."""
        self._lost: Rule | None = None
        self._handler = Handler(self.core)
        kinds = BY_NAME[role]
        self.manager = Manager(self.core, kinds) if kinds else None
        for controller in self.manager.controllers if self.manager else ():
            if isinstance(controller, Namespaces):
                controller.authority = authority
        self._begin()

    def _begin(self) -> None:
        self.core.store = Store(revision=self._first_revision, history=self._history)
        self.core.catalog = Catalog()
        bootstrap(self.core, authority=self.authority)
        for number in range(self.nodes):
            self.create(node_object(self.name, number), "kubelet")
        # An API server's watch caches begin when it starts.
        self.core.store.compact()
        self._attach()

    def _attach(self) -> None:
        """Has the controllers follow the store that is in place now."""
        if self.manager is not None:
            self.manager.attach()

    # Requests.

    def handle(self, request: Request, *, authorise: bool = True) -> Answer:
        """The answer, refusals included; faults are the caller's to look up (`faults.decide`) and to play."""
        self.requests += 1
        try:
            return self._answer(request, authorise)
        except Refused as refused:
            headers = {"Retry-After": str(refused.retry_after)} if refused.retry_after else {}
            return Response(refused.code, error_bytes(refused), headers=headers)

    def _group_is_known(self, group: str) -> bool:
        return not group or group in discovery.groups(self.core.catalog)

    def _answer(self, request: Request, authorise: bool) -> Answer:
        plain = self._plain(request)
        if plain is not None:
            return plain
        target = parse_target(request.path)
        if authorise:
            rbac.check(self.core, request.user, rbac.attributes(request, target, None))
        if target is None:
            return self._document(request)
        if not self._group_is_known(target.group):
            return Response(404, b"404 page not found\n", "text/plain; charset=utf-8")
        answer = self._handler.handle(request, target)
        if isinstance(answer, WatchResponse):
            self._track(answer.watch)
        return answer

    def _track(self, watch: Watch) -> None:
        self.watches.add(watch)
        watch.on_closed = self.watches.discard

    def _plain(self, request: Request) -> Response | None:
        path = request.path.rstrip("/")
        if path == "/version":
            return Response(200, encode(VERSION))
        if path.startswith(_HEALTH):
            if self.healthy:
                return Response(200, b"ok", "text/plain; charset=utf-8")
            return Response(500, b"[-]etcd failed: reason withheld\n", "text/plain; charset=utf-8")
        return None

    def _document(self, request: Request) -> Response:
        path, catalog = request.path.rstrip("/"), self.core.catalog
        parts = path.strip("/").split("/")
        found: Object | None = None
        if path in ("/api", "/apis") and discovery.wants_aggregated(request.accept):
            body = encode(discovery.aggregated(catalog, core=path == "/api"))
            return Response(200, body, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
        if path.startswith("/openapi/v3/"):
            whole = openapi.document(catalog, path.removeprefix("/openapi/v3/"))
            if whole is None:
                raise no_such_resource()
            return Response(200, whole)
        if path == "/openapi/v3":
            found = openapi.index(catalog)
        elif path == "/openapi/v2":
            found = openapi.empty_v2()
        elif path == "/api":
            found = discovery.versions_document(self.server)
        elif path == "/apis":
            found = discovery.groups_document(catalog)
        elif parts[0] == "api" and len(parts) == 2:
            found = discovery.resources_document(catalog, "", parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            found = discovery.resources_document(catalog, parts[1], parts[2])
        elif parts[0] == "apis" and len(parts) == 2:
            versions = discovery.groups(catalog).get(parts[1])
            found = discovery.group_document(parts[1], versions) if versions else None
        if found is None:
            raise no_such_resource()
        return Response(200, encode(found) + b"\n")

    def verb(self, request: Request) -> tuple[str, str]:
        """(verb, resource) as fault rules name them; ("get", path) for what is no resource."""
        target = parse_target(request.path)
        if target is None:
            return request.method.lower(), request.path
        return rbac.verb_of(request, target, None), target.plural

    # The same in Python, for tests: objects are dicts, kinds are known by apiVersion and kind.

    def type_of(self, obj: Mapping[str, Any]) -> ResourceType:
        """LookupError when the cluster does not serve it."""
        found = self.core.catalog.by_kind(obj.get("apiVersion", ""), obj.get("kind", ""))
        if found is None:
            raise LookupError(f"{self.name} serves no {obj.get('kind')} in {obj.get('apiVersion')}")
        return found

    def type(self, plural: str) -> ResourceType:
        """By collection name: `pods`, `deployments.apps`."""
        found = self.core.catalog.by_collection(plural)
        if found is None:
            raise LookupError(f"{self.name} serves no {plural}")
        return found

    def create(self, obj: Object, manager: str = "test") -> Object:
        """Raises Refused, as all of these."""
        type_ = self.type_of(obj)
        namespace = (obj.get("metadata") or {}).get("namespace", "default") if type_.namespaced else None
        return loaded(type_, create(self.core, type_, namespace, obj, Writing(manager)))

    def replace(self, obj: Object, sub: str = "", manager: str = "test") -> Object:
        type_ = self.type_of(obj)
        meta = obj["metadata"]
        namespace = meta.get("namespace", "default") if type_.namespaced else None
        state, _ = replace(self.core, type_, namespace, meta["name"], obj, Writing(manager), sub=sub)
        return loaded(type_, state)

    def patch(self, plural: str, namespace: str | None, name: str, change: Any, sub: str = "") -> Object:
        """JSON merge patch."""
        type_ = self.type(plural)
        state = update(
            self.core, type_, namespace, name, lambda obj: merge_patch(obj, change), Writing("test"), sub=sub
        )
        return loaded(type_, state)

    def delete(self, plural: str, namespace: str | None, name: str, options: Options = NO_OPTIONS) -> None:
        delete(self.core, self.type(plural), namespace, name, options)

    def get(self, plural: str, namespace: str | None, name: str) -> Object:
        type_ = self.type(plural)
        return loaded(type_, self.core.get(type_, namespace, name))

    def objects(self, plural: str, namespace: str = "") -> Iterator[Object]:
        """Live objects in key order."""
        type_ = self.type(plural)
        collection = self.core.collection(type_)
        for key in list(collection.each(f"{namespace}/" if namespace else "")):
            yield loaded(type_, collection.live[key])

    def states(self, plural: str) -> Mapping[str, State]:
        """Live states by key, undecoded."""
        return self.core.collection(self.type(plural)).live

    def list(self, plural: str, namespace: str | None = None, **query: str) -> Page:
        """A page, as a GET with this query would get it (`continue_` for `continue`)."""
        query = {name.rstrip("_"): value for name, value in query.items()}
        type_ = self.type(plural)
        wanted = make_filter(type_, namespace, None, query)
        return list_page(self.core.store, self.core.collection(type_), wanted, query)

    def watch(self, plural: str, namespace: str | None = None, **query: str) -> Watch:
        """A watch whose events the caller takes."""
        type_ = self.type(plural)
        wanted = make_filter(type_, namespace, None, query)
        watch = open_watch(self.core.store, self.core.collection(type_), wanted, query)
        self._track(watch)
        return watch

    # What happens to it.

    @property
    def revision(self) -> int:
        return self.core.store.revision

    @property
    def uid(self) -> str:
        """The uid of kube-system: which life this is."""
        uid: str = self.get("namespaces", None, "kube-system")["metadata"]["uid"]
        return uid

    def drop_watches(self, plural: str = "") -> int:
        """Ends open watches (of one collection) as a network would; how many."""
        found = [w for w in self.watches if not w.closed and plural in ("", w.wanted.type.collection)]
        for watch in found:
            watch.close("dropped")
        return len(found)

    def bookmark(self) -> None:
        """Sends every watch that asked for bookmarks one, now."""
        for watch in list(self.watches):
            watch.bookmark()

    def compact(self, revision: int | None = None) -> None:
        """Forgets history: watches and lists from before get 410."""
        self.core.store.compact(revision)

    def restart(self) -> None:
        """The API server restarts: watches end, and its watch cache begins now; etcd keeps old lists readable."""
        self.drop_watches()
        for collection in self.core.store.collections.values():
            collection.window = self.core.store.revision

    def backup(self) -> Backup:
        return self.core.store.backup()

    def restore(self, backup: Backup) -> None:
        """From a backup: versions run backwards and repeat; kube-system keeps its uid."""
        self.drop_watches()
        store = self.core.store
        store.restore(backup)
        store.listeners.clear()
        self._attach()

    def reincarnate(self) -> None:
        """Another cluster takes this one's place: empty, with versions from the start and new uids."""
        self.drop_watches()
        self.lives += 1
        self._begin()

    def lose_network(self) -> None:
        """Watches fall silent without ending, and requests hang (a fault rule), until `find_network`."""
        if self._lost is None:
            self._lost = self.faults.add(Rule("hang"))
        for watch in self.watches:
            watch.hold()

    def find_network(self) -> None:
        """Requests that hung are cut; watches get what came meanwhile."""
        if self._lost is not None:
            self.faults.lift(self._lost)
        self._lost = None
        for watch in self.watches:
            watch.hold(False)


__all__ = ["ADMIN", "VERSION", "Cluster", "User"]
