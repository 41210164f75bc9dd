"""TokenReview and the access reviews: what Reclock's front asks its host."""

from __future__ import annotations

from typing import Any

from deploy.local.sim import rbac
from deploy.local.sim.core import Core, User
from deploy.local.sim.types import Object

#: Bearer token -> its user.
Tokens = dict[str, User]


def review(core: Core, tokens: Tokens, kind: str, user: User, obj: Object, namespace: str | None) -> Object:
    """The answered review of the kind."""
    spec = obj.get("spec") or {}
    if kind == "TokenReview":
        status = _token_status(tokens, spec)
    elif kind == "SelfSubjectReview":
        status = {"userInfo": _user_info(user)}
    elif kind == "SelfSubjectRulesReview":
        status = _rules_status(core, user, spec)
    else:
        about = user
        if kind in ("SubjectAccessReview", "LocalSubjectAccessReview"):
            about = User(spec.get("user") or "", tuple(spec.get("groups") or ()), spec.get("uid") or "")
        status = _access_status(core, about, spec, namespace)
    return {**obj, "metadata": obj.get("metadata") or {}, "status": status}


def _token_status(tokens: Tokens, spec: dict[str, Any]) -> dict[str, Any]:
    user = tokens.get(spec.get("token") or "")
    if user is None:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": _user_info(user)}


def _user_info(user: User) -> dict[str, Any]:
    found: dict[str, Any] = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        found["uid"] = user.uid
    return found


def _access_status(core: Core, user: User, spec: dict[str, Any], namespace: str | None) -> dict[str, Any]:
    asked, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if asked is not None:
        wanted = rbac.Attributes(
            asked.get("verb", ""),
            asked.get("group", ""),
            asked.get("version", ""),
            asked.get("resource", ""),
            asked.get("subresource", ""),
            namespace or asked.get("namespace", ""),
            asked.get("name", ""),
        )
    else:
        wanted = rbac.Attributes((path or {}).get("verb", ""), path=(path or {}).get("path", ""))
    return {"allowed": True} if rbac.allows(core, user, wanted) else {"allowed": False}


def _rules_status(core: Core, user: User, spec: dict[str, Any]) -> dict[str, Any]:
    every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    if rbac.MASTERS in user.groups:
        found = [every]
    else:
        found = [
            rule for rule in rbac.rules(core, user, spec.get("namespace") or "") if rule.get("resources")
        ]
    paths = [{"verbs": ["*"], "nonResourceURLs": ["*"]}] if rbac.MASTERS in user.groups else []
    return {"resourceRules": found, "nonResourceRules": paths, "incomplete": False}
