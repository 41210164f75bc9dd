"""`authorization: Member`: members decide too, by the user's name."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

import msgspec

from services.aggregator.types import HOST, Aggregated, Call
from services.common.errors import StatusError
from services.common.kube.client import KubeClient
from services.common.kube.reviews import User

log = logging.getLogger(__name__)

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
KEEP = 10.0  # seconds that a verdict counts
CACHE = 10_000
REVIEW_TIMEOUT = 3.0

Identity = Callable[[Call, Aggregated], Mapping[str, str]]


class MemberAccess:
    """What a member lets a user do, asked by a SelfSubjectAccessReview that impersonates them."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._verdicts: OrderedDict[tuple[str, str, str, str, User], tuple[float, bool]] = OrderedDict()

    def headers(self, call: Call, aggregated: Aggregated) -> Mapping[str, str]:
        """Impersonation headers for requests to members; {} under `authorization: Host`."""
        return self.identity(call, aggregated) if aggregated.authorization == "Member" else {}

    async def allowed(
        self, call: Call, aggregated: Aggregated, cluster: str, client: KubeClient, verb: str
    ) -> bool:
        """May the caller `verb` this resource (in the request's namespace) on a member?

        StatusError when the member cannot be asked.
        """
        if cluster == HOST or aggregated.authorization != "Member":
            return True
        headers = self.headers(call, aggregated)
        key = (cluster, verb, aggregated.key, call.info.namespace, call.user)
        known = self._verdicts.get(key)
        now = time.monotonic()
        if known is not None and now - known[0] < KEEP:
            return known[1]
        verdict = await self._review(headers, aggregated, call.info.namespace, client, verb)
        self._verdicts[key] = (now, verdict)
        self._verdicts.move_to_end(key)
        while len(self._verdicts) > CACHE:
            self._verdicts.popitem(last=False)
        return verdict

    async def _review(
        self, headers: Mapping[str, str], aggregated: Aggregated, namespace: str, client: KubeClient, verb: str
    ) -> bool:
        attributes = {
            "verb": verb, "group": aggregated.group, "version": aggregated.version,
            "resource": aggregated.resource, "namespace": namespace,
        }  # fmt: skip
        review = {
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": attributes},
        }  # fmt: skip
        try:
            answer = await client.request(
                "POST", REVIEWS, body=msgspec.json.encode(review), timeout=REVIEW_TIMEOUT,
                headers={"Content-Type": "application/json", **headers},
            )  # fmt: skip
        except StatusError as error:
            if error.code != 403:
                raise
            # Not even the review is allowed: the member does not let us act as this user.
            log.info("member %s: review for %s refused: %s", client.name, aggregated.key, error.message)
            return False
        status = answer.json().get("status") or {}
        return bool(status.get("allowed"))
