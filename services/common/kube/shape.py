"""Clusters that are part of a server: which part, carried in the kubeconfig, and requests confined to it.

A kubeconfig cannot say that a client shall see one namespace only, so that is an extension of its cluster entry
(`clusters[0].cluster.extensions`, as exec plugins have theirs): it travels with the access, and every KubeClient
that is made of it keeps to it. What confines is this client and, on the server, RBAC of the credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from services.common.errors import StatusError, bad_request, not_found
from services.common.kube.resource import NAMESPACES

EXTENSION = "reclock.dev/access"
OPEN = frozenset({"readyz", "livez", "healthz", "version", "openapi"})
"""First segments of paths that are about the server and show no objects."""
REVIEWS = frozenset({"authorization.k8s.io", "authentication.k8s.io"})
"""Groups whose types are questions, not objects."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a server is the cluster; all of it by default."""

    namespace: str = ""
    """The only namespace of the cluster; "" is all of them."""
    identity: str = ""
    """Path of the object whose uid says which cluster it is; "" is kube-system, or the one namespace."""

    of: str = ""
    """Uid of the kube-system of the cluster that this is a part of, where it is known."""

    @property
    def identity_path(self) -> str:
        """Path of the object whose uid is the cluster's."""
        return self.identity or NAMESPACES.path(None, self.namespace or "kube-system")


KEYS = ("namespace", "identity", "of")
"""Fields of a Shape, as the extension names them."""


def shape_of(kubeconfig: Mapping[str, Any]) -> Shape:
    """Read the shape out of a single-context kubeconfig."""
    for item in kubeconfig["clusters"][0]["cluster"].get("extensions") or ():
        if isinstance(item, dict) and item.get("name") == EXTENSION and isinstance(item.get("extension"), dict):
            found = item["extension"]
            return Shape(*(str(found.get(key) or "") for key in KEYS))
    return Shape()


def shaped(kubeconfig: Mapping[str, Any], shape: Shape, server: str = "") -> dict[str, Any]:
    """Copy a single-context kubeconfig, with a shape and perhaps another server."""
    entry = kubeconfig["clusters"][0]
    cluster = dict(entry["cluster"])
    others = [one for one in cluster.get("extensions") or () if one.get("name") != EXTENSION]
    given = {key: value for key in KEYS if (value := getattr(shape, key))}
    cluster["extensions"] = [*others, {"name": EXTENSION, "extension": given}]
    if server:
        cluster["server"] = server
    return {**kubeconfig, "clusters": [{**entry, "cluster": cluster}]}


def confine(method: str, path: str, query: str, namespace: str) -> tuple[str, str]:
    """Return (path, query) of the same request about one namespace of the server.

    Lists over all namespaces become lists of the one, lists of other namespaces are empty, and of cluster-scoped
    objects there is only the namespace. StatusError (404, or 403 for what would make or remove the namespace) for
    all else, as of an API that has no such type or object. `path` and `query` are encoded.
    """
    raw = path.split("/")[1:]
    if raw and not raw[-1]:
        raw.pop()
    parts = [unquote(part) for part in raw]
    # Only what names the object is looked at: below it (a Service's proxy) paths are free.
    if "?" in path or "#" in path or any("/" in part or part in ("", ".", "..") for part in parts[:7]):
        raise _no_type(path)
    cut = {"api": 2, "apis": 3}.get(parts[0] if parts else "", 0)
    if not cut:
        if parts and parts[0] in OPEN and method in ("GET", "HEAD"):
            return path, query
        raise _no_type(path)
    if len(parts) <= cut or (cut == 3 and parts[1] in REVIEWS):
        return path, query
    rest = parts[cut:]
    if rest[0] != "namespaces":
        if method not in ("GET", "HEAD"):
            raise _no_type(path)
        return "/" + "/".join([*raw[:cut], "namespaces", quote(namespace, safe=""), *raw[cut:]]), query
    if len(rest) <= 2 or (len(rest) == 3 and rest[2] in ("status", "finalize")):
        return path, _itself(method, path, query, namespace, rest, core=cut == 2)
    if rest[1] == namespace:
        return path, query
    if len(rest) > 3 or method not in ("GET", "HEAD"):
        raise not_found("namespaces", rest[1])
    # The namespace is not there, so its list is empty: in whatever form the caller wants it.
    raw[cut + 1] = quote(namespace, safe="")
    return "/" + "/".join(raw), _narrowed(query, f"metadata.namespace={rest[1]}")


def keep_below(base: str, path: str) -> None:
    """StatusError (400) for an encoded path that would leave `base`, the path of a server's URL.

    Behind one address may stand many clusters, a path each (Rancher's `/k8s/clusters/<id>`), all with the same
    credentials: `..` would make the right to one of them a right to all.
    """
    if base and ".." in unquote(path) and any(_climbs(text) for text in (path, unquote(path))):
        raise bad_request("the path leaves the cluster that it is about")


def _climbs(path: str) -> bool:
    depth = 0
    for part in map(unquote, path.split("/")):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


def _itself(method: str, path: str, query: str, namespace: str, rest: list[str], *, core: bool) -> str:
    """The query of a request about namespaces themselves."""
    reads = method in ("GET", "HEAD")
    if not core:
        raise _no_type(path)
    if len(rest) == 1 and reads:
        return _narrowed(query, f"metadata.name={namespace}")
    if len(rest) > 1 and rest[1] != namespace:
        raise not_found("namespaces", rest[1])
    if not reads and (len(rest) != 2 or method == "DELETE"):
        raise StatusError(403, "Forbidden", f"this cluster is the namespace {namespace!r}: it makes and removes none")
    return query


def _narrowed(query: str, selector: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    given = [value for key, value in pairs if key == "fieldSelector" and value]
    others = [pair for pair in pairs if pair[0] != "fieldSelector"]
    return urlencode([*others, ("fieldSelector", ",".join([*given, selector]))], quote_via=quote)


def _no_type(path: str) -> StatusError:
    message = f"the server could not find the requested resource ({path}: this cluster is one namespace)"
    return StatusError(404, "NotFound", message)


def is_document(path: str) -> bool:
    """Whether a path is that of a discovery document: `/api`, `/apis`, of a group, of a version."""
    parts = path.strip("/").split("/")
    return (parts[0] == "api" and len(parts) <= 2) or (parts[0] == "apis" and len(parts) <= 3)


def confine_document(document: Any) -> Any:
    """Leave out types of a discovery document (either form) that a confined client gets 404 for."""
    if not isinstance(document, dict):
        return document
    kind = document.get("kind")
    if kind == "APIResourceList":
        review = str(document.get("groupVersion", "")).partition("/")[0] in REVIEWS
        kept = [
            one for one in document.get("resources") or []
            if review or one.get("namespaced") or one.get("name") in ("namespaces", "namespaces/status")
        ]  # fmt: skip
        return {**document, "resources": kept}
    if kind == "APIGroupDiscoveryList":
        return {**document, "items": [_group(item) for item in document.get("items") or []]}
    return document


def _group(item: Any) -> Any:
    if (item.get("metadata") or {}).get("name") in REVIEWS:
        return item
    versions = [
        {**version, "resources": [
            one for one in version.get("resources") or []
            if one.get("scope") == "Namespaced" or one.get("resource") == "namespaces"
        ]}
        for version in item.get("versions") or []
    ]  # fmt: skip
    return {**item, "versions": versions}
