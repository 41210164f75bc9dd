"""gRPC of the aggregator."""
