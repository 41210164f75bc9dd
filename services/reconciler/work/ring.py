"""Rendezvous hashing with weights: each replica gets its share, and only what must move moves.

The owner of a cluster is the replica with the largest -w / ln(u), u drawn from (0, 1) by a hash that mixes both names
well (a plain FNV gave one of three replicas half of all clusters). Weighted rendezvous as in Schindelhauer and
Schomaker, "Weighted distributed hash tables" (2005).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping


def owner(cluster: str, weights: Mapping[str, float]) -> str:
    """The replica that a cluster belongs to; "" without replicas. O(replicas)."""
    return max(weights, key=lambda replica: (score(cluster, replica, weights[replica]), replica), default="")


def score(cluster: str, replica: str, weight: float) -> float:
    """How much a replica wants a cluster."""
    # The length keeps ("a", "bc") and ("ab", "c") apart.
    text = f"{len(replica)}:{replica}{cluster}".encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
    return -weight / math.log((number + 0.5) / 2**64)
