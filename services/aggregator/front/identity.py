"""Who a user is towards the host and the members: impersonation headers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import quote

from services.aggregator.types import Aggregated, Call
from services.common.errors import forbidden
from services.common.kube.reviews import User

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
ANONYMOUS = User("system:anonymous", groups=(UNAUTHENTICATED,))

_SERVICE_ACCOUNT = "system:serviceaccount:"
_SERVICE_ACCOUNTS = "system:serviceaccounts"


def host_headers(user: User) -> Mapping[str, str]:
    """Headers with which the host acts as `user`: Reclock's own identity there may impersonate anybody."""
    return _impersonate(user)


def member_headers(call: Call, aggregated: Aggregated) -> dict[str, str]:
    """Headers for a call to a member on behalf of `call.user`: none under `authorization: Host`.

    Under `Member` the member's RBAC judges the user. A fleet administrator (system:masters) is never impersonated:
    members would obey without asking; such a user could switch the aggregation to `Host`, so Reclock's own
    identity carries the request out. Other identities of control planes are refused (403): a name like
    system:kube-controller-manager is trusted by every cluster, but means the host's one only on the host.
    """
    if aggregated.authorization != "Member" or MASTERS in call.user.groups:
        return {}
    if not may_act_on_members(call.user):
        raise forbidden(
            f"{aggregated.key} is authorised by the members (authorization: Member), and {call.user.name!r} is an "
            "identity of a control plane, which Reclock does not impersonate on members; use another user or "
            "service account"
        )
    return dict(_impersonate(call.user))


def may_act_on_members(user: User) -> bool:
    """Whether members may be called impersonating `user`."""
    if user.name.startswith("system:"):
        if not user.name.startswith(_SERVICE_ACCOUNT):
            return False
        # Service accounts of kube-system are the built-in controllers', with wide rights in every cluster.
        if user.name.startswith(f"{_SERVICE_ACCOUNT}kube-system:"):
            return False
    return all(_harmless(group) for group in user.groups)


def _harmless(group: str) -> bool:
    if not group.startswith("system:") or group in (AUTHENTICATED, _SERVICE_ACCOUNTS):
        return True
    return group.startswith(f"{_SERVICE_ACCOUNTS}:") and group != f"{_SERVICE_ACCOUNTS}:kube-system"


@lru_cache(maxsize=4096)
def _impersonate(user: User) -> Mapping[str, str]:
    headers = {"Impersonate-User": user.name}
    for number, group in enumerate(user.groups):
        headers[_variant("Impersonate-Group", number)] = group
    if user.uid:
        headers["Impersonate-Uid"] = user.uid
    for key, values in user.extra:
        for number, value in enumerate(values):
            headers[_variant(f"Impersonate-Extra-{quote(key, safe='')}", number)] = value
    for value in headers.values():
        if any(character in value for character in "\r\n\0"):
            raise forbidden("the user's name, groups or extra hold a line break: they cannot be passed on")
    return MappingProxyType(headers)


def _variant(name: str, number: int) -> str:
    """The header name `name`, spelled anew for every `number`: header names have no case, keys of a dict have.

    So a header that comes several times survives in a plain dict, however often such dicts are merged.
    """
    spelled = []
    for character in name.lower():
        if character.isalpha():
            character = character.upper() if number & 1 else character
            number >>= 1
        spelled.append(character)
    if number:
        raise forbidden("too many groups, or values of one extra key, to be passed on")
    return "".join(spelled)
