"""Responses to requests for a path or a method that is not served."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from starlette.routing import BaseRoute, Route, WebSocketRoute

LONGEST_COMPARED = 100
"""Characters of a path for which a similar one is looked for."""


def wrong_request(method: str, path: str, routes: Iterable[BaseRoute], allowed: str) -> str:
    """The error's text, with the remedy; `allowed` are the methods of a path that is served."""
    refused = f"there is no {method} {path}"
    if allowed:
        methods = [each for each in allowed.split(", ") if each != "HEAD"]
        return f"{refused}; send {' or '.join(sorted(methods))}"
    served = list(routes)
    if any(isinstance(each, WebSocketRoute) and each.path == path for each in served):
        return f"{refused}; {path} is a WebSocket: connect with ws:// or wss://"
    if meant := _similar(path, [each.path for each in served if isinstance(each, Route)]):
        return f"{refused}; did you mean {meant}?"
    return f"{refused}; /docs lists the endpoints"


def _similar(path: str, known: Iterable[str]) -> str:
    """The path that was meant, with another prefix or with a typo; empty if none is similar."""
    if not 1 < len(path) <= LONGEST_COMPARED:
        return ""
    candidates = [each for each in known if each != "/" and "{" not in each]
    for each in candidates:
        if each.endswith(path) or path.endswith(each):
            return each
    return next(iter(difflib.get_close_matches(path, candidates, 1, 0.8)), "")
