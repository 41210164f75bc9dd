"""The host issues something for each child cluster, and no child gets a credential to ask for it.

Every cluster of the fleet gets a service account on the host, and in itself a Secret with a token of that account, which
the host mints, good for an hour and for the audience "fleet" only. It is renewed when half of its time is over. A
cluster that leaves takes its account along: its tokens are worth nothing from then on.

    reclock dev examples/python/cluster_identity.py
"""

from __future__ import annotations

import base64
import time

from reclock import FLEET, ApiError, On, Request, Requeue, Result, controller, run

NAMESPACE = "fleet-identities"
SECRET = "fleet-identity"
SECONDS = 3600


@controller(for_=FLEET, on=On.HOST)
async def cluster_identity(request: Request) -> Result:
    """A request is a cluster: it has joined, changed, left, or half of its token's time is over."""
    name, host = request.name, request.fleet.host
    if await request.get() is None:
        await host.delete("v1/serviceaccounts", name, NAMESPACE)
        print(f"{name}: has left, its identity is void", flush=True)
        return None
    member = request.fleet.cluster(name)
    left = await seconds_left(request)
    if left > SECONDS / 2:
        return Requeue(after=left - SECONDS / 2)
    for cluster in (host, member):
        await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    account = {"name": name, "namespace": NAMESPACE}
    await host.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    minted = await host.call(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}/token",
        body={
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": ["fleet"], "expirationSeconds": SECONDS},
        },
    )
    until = int(time.time()) + SECONDS
    await member.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": NAMESPACE, "annotations": {"until": str(until)}},
            "data": {"token": base64.b64encode(minted["status"]["token"].encode()).decode()},
        }
    )
    print(f"{name}: has a token of system:serviceaccount:{NAMESPACE}:{name}", flush=True)
    return Requeue(after=SECONDS / 2)


async def seconds_left(request: Request) -> float:
    """How long the token that the cluster holds is good; 0 when it has none, or its account is gone."""
    name, host, member = request.name, request.fleet.host, request.fleet.cluster(request.name)
    try:
        if await host.find("v1/serviceaccounts", name, NAMESPACE) is None:
            return 0.0
        found = await member.find("v1/secrets", SECRET, NAMESPACE)
        return float(found["metadata"]["annotations"]["until"]) - time.time() if found else 0.0
    except (ApiError, KeyError, ValueError) as error:
        request.log.info("its token cannot be read: %s", error)
        return 0.0


if __name__ == "__main__":
    run(cluster_identity)
