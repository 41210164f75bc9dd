"""The `reclock` command; as `kubectl reclock` it is a kubectl plugin."""

from reclock.cli.app import main

__all__ = ["main"]
