"""Reclock: one Kubernetes API over many clusters. What users import: stubs, and the command line."""

__version__ = "0.1.0"
