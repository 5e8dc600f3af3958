"""Reports ignored request fields. Each field is counted in a metric and logged once."""

from __future__ import annotations

import logging
from collections.abc import Collection

from antiphon_gateway.metrics import Metrics

log = logging.getLogger("gateway.endpoints")

MOST_LOGGED = 1024
"""The maximum number of fields that are logged. It is limited because clients choose the names."""


class IgnoredFieldReport:
    """Counts ignored fields and logs each of them once per endpoint and API key."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._logged: set[tuple[str, str, str]] = set()

    def report(self, path: str, key: str, ignored: Collection[str]) -> None:
        """Report the ignored fields of a request to the endpoint at `path`."""
        if not ignored:
            return
        self._metrics.ignored_fields.labels(path).inc(len(ignored))
        for name in ignored:
            if (path, key, name) in self._logged or len(self._logged) >= MOST_LOGGED:
                continue
            self._logged.add((path, key, name))
            whose = f" of key {key!r}" if key else ""
            log.info("%s ignores the request field %s%s", path, name, whose)
