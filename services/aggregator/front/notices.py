"""What the host stores but nothing in the fleet acts on yet: a create is answered with a Warning and the next step.

Nothing may be accepted and then ignored in silence. An entry goes when Reclock carries its type.
"""

from __future__ import annotations

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


def notice(info: RequestInfo, media_type: str = "") -> str | None:
    """The warning for a request to the host, or None; `media_type` tells a server-side apply, which may create."""
    creates = info.verb == "create" or (info.verb == "patch" and media_type.startswith("application/apply-patch"))
    if not creates or info.subresource:
        return None
    entry = NOT_CARRIED.get((info.group, info.resource))
    if entry is None:
        return None
    why, then = entry
    return f"{info.resource}: stored, but {why}; next step: {then}"
