"""Access that waits for a cluster's name: nothing uses it until it is known which cluster it leads to.

A cluster that may hold copies keeps its name until it has left. Other access under that name is probed beside: where
it leads to the same cluster it is taken in place; where it leads to another one, that one waits until the first has
left. So nothing is ever written to a cluster in another one's place.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from services.discovery.providers.base import Found

ANOTHER = "another cluster"
"""`Record.verified` while the access in force is known to lead to another cluster."""
NOT_PROBED = "no probe has ended yet"


@dataclass(slots=True)
class Waiting:
    """What a provider found under a name that a cluster has still."""

    provider: str
    found: Found
    uid: str = ""
    """Of the cluster that it leads to, once it is known to be another one."""
    problem: str = NOT_PROBED
    """Why it is not known where it leads; for people."""

    def describe(self, name: str, uid: str, leaving: bool) -> tuple[str, str]:
        """(reason, message) for the one who looks at the cluster of that name and uid."""
        forget = f"`reclock forget {name}` says that it will not come back"
        if self.uid:
            return "AnotherCluster", (
                f"another cluster ({self.found.server}, uid {self.uid}) has this name now and waits until this one (uid {uid})"
                f" has left: its work moves when it has been leaving for workerLostTimeout; {forget}, which ends the wait"
            )
        state = "it is leaving, and other" if leaving else "other"
        return "AccessNotVerified", (
            f"{state} access ({self.found.server}) was found under its name; it is not used until it is known to lead to this"
            f" cluster (uid {uid}): {self.problem}"
        )


def fingerprint(uid: str, found: Found) -> str:
    """What is kept of access that was seen to lead to a cluster: it gives nothing of the access away."""
    return hashlib.sha256(f"{uid} {found.digest}".encode()).hexdigest()[:16]
