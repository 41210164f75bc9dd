"""Fleet versions: `(base + etcd revision) << 7 | index`.

`base` is milliseconds since the epoch when the etcd was created or rebuilt; commits stay below 1,000/s on
average, so versions of a rebuilt etcd are above all old ones. The result stays below 2^53 (JavaScript).
"""

from __future__ import annotations

INDEX_BITS = 7
MAX_INDEX = (1 << INDEX_BITS) - 1
LIMIT = 1 << 53


def encode(base: int, revision: int, index: int) -> int:
    """Return the fleet version of the `index`-th event (0..127) of etcd's `revision`."""
    if not 0 <= index <= MAX_INDEX:
        raise ValueError(f"index {index} is not in 0..{MAX_INDEX}")
    fleet = (base + revision) << INDEX_BITS | index
    if not 0 <= fleet < LIMIT:
        raise ValueError(f"fleet version {fleet} is not below 2^53")
    return fleet


def decode(base: int, fleet: int) -> tuple[int, int]:
    """Return (etcd revision, index); the revision is negative for versions of an older etcd."""
    return (fleet >> INDEX_BITS) - base, fleet & MAX_INDEX
