"""Which resources are aggregated: the `APIAggregation` objects on the host, kept in step with the clusters."""

from services.aggregator.aggregations.registry import Aggregations

__all__ = ["Aggregations"]
