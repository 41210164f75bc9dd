"""What the front serves of other services, so that people need one address and one set of rights."""

from services.aggregator.pages.operations import Operations
from services.aggregator.pages.pages import Pages

__all__ = ["Operations", "Pages"]
