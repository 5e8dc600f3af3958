"""How long an HTTP client waits, where it says so."""

from __future__ import annotations

from dataclasses import replace

from starlette.types import Scope

from antiphon_gateway.orders.order import Order

READ_TIMEOUT_HEADER = b"x-stainless-read-timeout"
"""OpenAI's clients send it: seconds without a byte after which they give up."""


def with_client_deadline(order: Order, scope: Scope, *, streamed: bool) -> Order:
    """The order with what its client waits: for the first of a streamed answer, for all of
    another. What is no number of seconds says nothing."""
    given = dict(scope["headers"]).get(READ_TIMEOUT_HEADER, b"").decode("latin-1")
    try:
        seconds = float(given)
    except ValueError:
        return order
    if not seconds > 0:
        return order
    within_s = order.timeout_s if streamed else min(order.timeout_s, seconds)
    return replace(order, start_within_s=seconds, timeout_s=within_s)
