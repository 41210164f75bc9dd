"""Reads: get, list and watch over all members, under fleet versions."""

from services.aggregator.reads.negotiate import Negotiated, negotiate
from services.aggregator.reads.service import Reads
from services.aggregator.reads.versionmarkers import VersionMarkers

__all__ = ["Negotiated", "Reads", "VersionMarkers", "negotiate"]
