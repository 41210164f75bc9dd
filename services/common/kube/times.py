"""Times as Kubernetes writes them (`metav1.Time`, RFC 3339). Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str | None) -> datetime | None:
    """A time, or None where it is absent; ValueError when it is no time. Without a zone it is UTC."""
    if not text:
        return None
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
