"""What the host stores but nothing in the fleet acts on yet: a create is answered with a Warning and the next step.

Nothing may be accepted and then ignored in silence. An entry goes when Reclock carries its type.
"""

from __future__ import annotations

from services.aggregator.types import RequestInfo

_DIRECT = "create it on the members: kubectl --server <this server>/clusters/<name>"

NOT_CARRIED: dict[tuple[str, str], tuple[str, str]] = {
    ("autoscaling", "horizontalpodautoscalers"): (
        "Reclock does not scale on metrics", "scale by hand: kubectl scale"),
    ("policy", "poddisruptionbudgets"): (
        "evictions on members do not ask the host's budgets", _DIRECT),
    ("", "resourcequotas"): (
        "the host does not count what runs on members", "bound the fleet by PlacementPolicies, or " + _DIRECT),
    ("", "limitranges"): (
        "pods are admitted by their members, which do not know it", _DIRECT),
    ("", "replicationcontrollers"): (
        "nothing makes pods for it", "use a Deployment"),
    ("networking.k8s.io", "ingresses"): (
        "no controller on the host answers for it", _DIRECT),
    ("networking.k8s.io", "networkpolicies"): (
        "the members' networks do not know it", _DIRECT),
    ("", "persistentvolumes"): (
        "volumes belong to the member that has the storage", _DIRECT),
    ("gateway.networking.k8s.io", "gateways"): (
        "no controller on the host answers for it", _DIRECT),
    ("gateway.networking.k8s.io", "httproutes"): (
        "no controller on the host answers for it", _DIRECT),
}  # fmt: skip


def notice(info: RequestInfo) -> str | None:
    """The warning for a request to the host, or None."""
    if info.verb != "create" or info.subresource:
        return None
    entry = NOT_CARRIED.get((info.group, info.resource))
    if entry is None:
        return None
    why, then = entry
    return f"{info.resource}: stored, but Reclock does not act on it yet ({why}); next step: {then}"
