"""Identities: whom members may be called as, and how several groups travel in plain dicts."""

from __future__ import annotations

from typing import cast

import pytest
from multidict import CIMultiDict

from services.aggregator.front.identity import host_headers, may_act_on_members, member_headers
from services.aggregator.types import Aggregated, Call, RequestInfo
from services.common.errors import StatusError
from services.common.kube.reviews import User

PODS = Aggregated("pods", "", "v1", "pods", "Pod", True, authorization="Member")


def call(user: User) -> Call:
    return Call(cast("object", None), RequestInfo("get", "/", False), user)  # type: ignore[arg-type]


def test_repeated_headers_survive_merging_of_plain_dicts() -> None:
    user = User("alice", tuple(f"g{number}" for number in range(300)), "u", (("k/é", ("a", "b")),))
    merged = {"Accept": "x", **dict(host_headers(user))}
    seen: CIMultiDict[str] = CIMultiDict()
    seen.extend(merged)
    assert seen.getall("Impersonate-Group") == list(user.groups)
    assert seen.getall("Impersonate-Extra-k%2F%C3%A9") == ["a", "b"]
    assert seen.getall("Impersonate-User") == ["alice"] and seen["Impersonate-Uid"] == "u"


def test_under_host_authorization_members_are_called_as_ourselves() -> None:
    host = Aggregated("pods", "", "v1", "pods", "Pod", True)
    assert member_headers(call(User("alice")), host) == {}


def test_under_member_authorization_the_user_is_impersonated() -> None:
    headers = member_headers(call(User("alice", groups=("dev", "system:authenticated"))), PODS)
    assert headers["Impersonate-User"] == "alice"
    assert sorted(headers.values()) == ["alice", "dev", "system:authenticated"]


def test_fleet_administrators_are_never_impersonated() -> None:
    assert member_headers(call(User("admin", groups=("system:masters", "system:authenticated"))), PODS) == {}


@pytest.mark.parametrize(
    "user",
    [
        User("system:kube-controller-manager"), User("system:node:n1", groups=("system:nodes",)),
        User("eve", groups=("system:nodes",)), User("system:serviceaccount:kube-system:expand-controller"),
        User("eve", groups=("system:serviceaccounts:kube-system",)), User("system:anonymous"),
    ],
)  # fmt: skip
def test_control_planes_identities_are_refused(user: User) -> None:
    assert not may_act_on_members(user)
    with pytest.raises(StatusError) as refused:
        member_headers(call(user), PODS)
    assert refused.value.code == 403 and "authorization: Member" in refused.value.message


@pytest.mark.parametrize(
    "user",
    [
        User("alice"), User("oidc:alice", groups=("oidc:dev",)),
        User("system:serviceaccount:ns:sa", groups=("system:serviceaccounts", "system:serviceaccounts:ns")),
    ],
)  # fmt: skip
def test_fault_24_users_and_service_accounts_may(user: User) -> None:
    assert may_act_on_members(user)


def test_names_with_line_breaks_are_refused() -> None:
    with pytest.raises(StatusError) as refused:
        host_headers(User("a\r\nImpersonate-Group: system:masters"))
    assert refused.value.code == 403
