"""What is wrong with the sources of clusters, and since when."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import datetime

from services.discovery import metrics
from services.discovery.providers.base import Problem
from services.discovery.record import now

log = logging.getLogger(__name__)


class Sources:
    """Problems by provider; each is logged when it comes up and when it is over."""

    def __init__(self) -> None:
        self._problems: dict[str, dict[tuple[str, str], datetime]] = {}

    def problems(self) -> Iterator[tuple[str, str, str, datetime]]:
        """Yield (provider, source, message, since)."""
        for provider, known in sorted(self._problems.items()):
            for (source, message), since in sorted(known.items()):
                yield provider, source, message, since

    def note(self, provider: str, problems: Iterable[Problem]) -> None:
        """A provider was read: these are all there are."""
        before = self._problems.get(provider, {})
        known: dict[tuple[str, str], datetime] = {}
        for problem in problems:
            key = (problem.source, problem.message)
            known[key] = before.get(key) or now()
            if key not in before:
                log.warning("%s: %s: %s", provider, problem.source, problem.message)
        for source, message in set(before) - set(known):
            log.info("%s: %s: no longer so: %s", provider, source, message)
        self._problems[provider] = known
        metrics.SOURCE_PROBLEMS.labels(provider).set(len(known))
        oldest = min(known.values()).timestamp() if known else 0
        metrics.SOURCE_PROBLEMS_SINCE.labels(provider).set(oldest)
