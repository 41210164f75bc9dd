"""What the host stores but nothing in the fleet acts on yet: a create is answered with a Warning and the next step.

Nothing may be accepted and then ignored in silence. An entry goes when Reclock carries its type.
"""

from __future__ import annotations

import re

from services.aggregator.types import RequestInfo

_DIRECT = "create it on the members: kubectl --server <this server>/clusters/<name>"

NOT_CARRIED: dict[tuple[str, str], tuple[str, str]] = {
    ("autoscaling", "horizontalpodautoscalers"): (
        "Reclock does not scale on metrics yet", "scale by hand: kubectl scale"),
    ("policy", "poddisruptionbudgets"): (
        "evictions on members do not ask the host's budgets yet", _DIRECT),
    ("", "resourcequotas"): (
        "what runs on members is not counted yet", "bound the fleet by PlacementPolicies, or " + _DIRECT),
    ("", "replicationcontrollers"): (
        "nothing makes pods for it", "use a Deployment"),
    ("networking.k8s.io", "ingresses"): (
        "no controller of the fleet answers for it yet", _DIRECT),
    ("", "persistentvolumes"): (
        "volumes belong to the member that has the storage", _DIRECT),
    ("gateway.networking.k8s.io", "gateways"): (
        "no controller of the fleet answers for it yet", _DIRECT),
    ("gateway.networking.k8s.io", "httproutes"): (
        "no controller of the fleet answers for it yet", _DIRECT),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): (
        "it sees what the host stores, not the pods that members admit", _DIRECT),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): (
        "it sees what the host stores, not the pods that members admit", _DIRECT),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"): (
        "it judges what the host stores, not the pods that members admit", _DIRECT),
}  # fmt: skip


LOAD_BALANCER = re.compile(
    rb"""\btype["']?\s*:\s*["']?LoadBalancer\b"""  # JSON and YAML; a copy of it in an annotation has escaped quotes
    rb"""|\A(?=k8s\0)[\s\S]*"\x0cLoadBalancer"""  # protobuf: field 4 of ServiceSpec
)


def may_create(info: RequestInfo, media_type: str = "") -> bool:
    """Whether a request makes an object; `media_type` tells a server-side apply, which may."""
    applies = info.verb == "patch" and media_type.startswith("application/apply-patch")
    return (info.verb == "create" or applies) and not info.subresource


def is_service(info: RequestInfo) -> bool:
    """Whether it is about a Service: what becomes of one depends on its body."""
    return (info.group, info.resource) == ("", "services")


def notice_of_service(body: bytes | None) -> str | None:
    """The warning for a Service that asks for a load balancer of the host, or None."""
    if not body or not LOAD_BALANCER.search(body):
        return None
    return (
        "services: stored, but no controller gives the host's Service an address (EXTERNAL-IP stays <pending>); "
        "next step: members that have load balancers give their copies one: "
        "kubectl --server <this server>/clusters/<name> get services"
    )


def notice(info: RequestInfo, media_type: str = "") -> str | None:
    """The warning for a request to the host, or None."""
    if not may_create(info, media_type):
        return None
    entry = NOT_CARRIED.get((info.group, info.resource))
    if entry is None:
        return None
    why, then = entry
    return f"{info.resource}: stored, but {why}; next step: {then}"
