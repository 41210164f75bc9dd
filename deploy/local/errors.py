"""The one family of errors that a fleet raises for reasons outside its code: their messages are for users."""

from __future__ import annotations


class FleetFailed(Exception):
    """A fleet cannot start or be told something, and why."""


class NotReady(FleetFailed, TimeoutError):
    """Something that did not become ready in time."""
