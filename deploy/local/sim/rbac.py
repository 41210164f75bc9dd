"""Who may do what: RBAC over the cluster's roles and bindings; `system:masters` may do everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deploy.local.sim import errors
from deploy.local.sim.core import Core, User
from deploy.local.sim.requests import Request, Target
from deploy.local.sim.types import ResourceType

_GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
_OPEN = ("/api", "/apis", "/openapi", "/version", "/healthz", "/livez", "/readyz")


@dataclass(frozen=True)
class Attributes:
    """What is to be done. `path` for requests that name no resource."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    sub: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


def verb_of(request: Request, target: Target, type_: ResourceType | None) -> str:
    """get, list, watch, create, update, patch, delete or deletecollection."""
    method = request.method
    if method in ("GET", "HEAD"):
        if "watch" in request.query and request.watches:
            return "watch"
        return "get" if target.name else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())


def attributes(request: Request, target: Target | None, type_: ResourceType | None) -> Attributes:
    if target is None:
        return Attributes(request.method.lower(), path=request.path)
    return Attributes(
        verb_of(request, target, type_),
        target.group,
        target.version,
        target.plural,
        target.sub,
        target.namespace or "",
        target.name,
    )


def check(core: Core, user: User, wanted: Attributes) -> None:
    """Raises Refused (403) in the API server's words."""
    if allows(core, user, wanted):
        return
    if wanted.path:
        why = f'User "{user.name}" cannot {wanted.verb} path "{wanted.path}"'
        raise errors.forbidden("", "", "", why)
    where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    resource = f"{wanted.resource}/{wanted.sub}" if wanted.sub else wanted.resource
    why = (
        f'User "{user.name}" cannot {wanted.verb} resource "{resource}" in API group "{wanted.group}" {where}'
    )
    raise errors.forbidden(wanted.group, wanted.resource, wanted.name, why)


def allows(core: Core, user: User, wanted: Attributes) -> bool:
    """Whether some role that the user is bound to has a rule for it."""
    if MASTERS in user.groups:
        return True
    if wanted.path and wanted.verb == "get" and user.groups and wanted.path.startswith(_OPEN):
        return True
    if wanted.resource.startswith("selfsubject") and wanted.verb == "create":
        return True
    return any(_rule_allows(rule, wanted) for rule in rules(core, user, wanted.namespace))


def rules(core: Core, user: User, namespace: str) -> Iterator[dict[str, Any]]:
    """The rules that hold for a user in a namespace ("" for none)."""
    bindings = [core.store.collection(f"clusterrolebindings.{_GROUP}").live.values()]
    if namespace:
        found = core.store.collection(f"rolebindings.{_GROUP}")
        bindings.append([found.live[key] for key in found.each(f"{namespace}/")])  # type: ignore[arg-type]
    for states in bindings:
        for state in states:
            binding = state.object()
            if any(_is_subject(subject, user, namespace) for subject in binding.get("subjects") or ()):
                yield from _role_rules(core, binding["roleRef"], state.namespace)


def _role_rules(core: Core, reference: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    if reference["kind"] == "ClusterRole":
        state = core.store.collection(f"clusterroles.{_GROUP}").live.get(reference["name"])
    else:
        state = core.store.collection(f"roles.{_GROUP}").live.get(f"{namespace}/{reference['name']}")
    return (state.object().get("rules") or []) if state is not None else []


def _is_subject(subject: dict[str, Any], user: User, namespace: str) -> bool:
    if subject["kind"] == "Group":
        return subject["name"] in user.groups
    if subject["kind"] == "ServiceAccount":
        name = f"system:serviceaccount:{subject.get('namespace') or namespace}:{subject['name']}"
        return user.name == name
    return bool(subject["name"] == user.name)


def _rule_allows(rule: dict[str, Any], wanted: Attributes) -> bool:
    if not _has(rule.get("verbs"), wanted.verb):
        return False
    if wanted.path:
        return any(
            pattern in ("*", wanted.path) or (pattern.endswith("*") and wanted.path.startswith(pattern[:-1]))
            for pattern in rule.get("nonResourceURLs") or ()
        )
    resource = f"{wanted.resource}/{wanted.sub}" if wanted.sub else wanted.resource
    listed = rule.get("resources") or ()
    names = rule.get("resourceNames")
    return (
        _has(rule.get("apiGroups"), wanted.group)
        and (_has(listed, resource) or (bool(wanted.sub) and f"*/{wanted.sub}" in listed))
        and (not names or wanted.name in names)
    )


def _has(listed: Any, wanted: str) -> bool:
    return "*" in (listed or ()) or wanted in (listed or ())
