"""The key that signs continue tokens: made once per fleet, kept in etcd, the same for replicas and restarts."""

from __future__ import annotations

import secrets

from services.common.etcd import Etcd, EtcdError, compare, op_put
from services.common.tasks import Backoff

BYTES = 32


async def token_secret(etcd: Etcd, prefix: str) -> bytes:
    """Read the key, or make it; waits for etcd as long as it takes."""
    key = f"{prefix}token-secret".encode()
    backoff = Backoff(initial=0.2, maximum=5.0)
    while True:
        try:
            found = await etcd.get(key)
            if found is not None:
                return bytes(found.value)
            # Of two replicas that start at once, one wins; the other reads the winner's in the next round.
            await etcd.txn([compare(key, "create", "=", 0)], [op_put(key, secrets.token_bytes(BYTES))])
        except EtcdError:
            await backoff.wait()
