"""The key that signs continue tokens: made once per fleet, kept in etcd, the same for replicas and restarts."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from services.common.etcd import Etcd, EtcdError, compare, op_put
from services.common.tasks import Backoff

log = logging.getLogger(__name__)

BYTES = 32


async def token_secret(etcd: Etcd, prefix: str, waits: Callable[[str], None]) -> bytes:
    """Read the key, or make it; waits for etcd as long as it takes, and tells `waits` why."""
    key = f"{prefix}token-secret".encode()
    backoff = Backoff(initial=0.2, maximum=5.0)
    said = ""
    while True:
        try:
            found = await etcd.get(key)
            if found is not None:
                return bytes(found.value)
            # Of two replicas that start at once, one wins; the other reads the winner's in the next round.
            await etcd.txn([compare(key, "create", "=", 0)], [op_put(key, secrets.token_bytes(BYTES))])
        except EtcdError as error:
            if said != str(error):
                # A password or certificate that is wrong stays so until somebody reads this.
                said = str(error)
                log.warning("it waits for etcd: %s", said)
                waits(said)
            await backoff.wait()
