"""Uids of owners: the host's outside, the member's inside (three cases, see docs/front.md)."""

from services.aggregator.owners.owners import OwnerLike, Owners

__all__ = ["OwnerLike", "Owners"]
