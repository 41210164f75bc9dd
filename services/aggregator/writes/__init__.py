"""Writes of aggregated objects: routed to the member that holds the object, versions and owners translated."""

from services.aggregator.writes.writes import Writes

__all__ = ["Writes"]
