"""The timeout that HTTP clients state in a header."""

from __future__ import annotations

from dataclasses import replace

from starlette.types import Scope

from antiphon_gateway.orders.order import Order

READ_TIMEOUT_HEADER = b"x-stainless-read-timeout"
"""The header in which OpenAI's clients state their read timeout in seconds."""


def with_client_deadline(order: Order, scope: Scope, *, streamed: bool) -> Order:
    """Return the order with the client's timeout.

    If the answer is streamed, this limits the time until the first event. Otherwise, it limits the
    time until the answer is complete. Invalid numbers are ignored.
    """
    given = dict(scope["headers"]).get(READ_TIMEOUT_HEADER, b"").decode("latin-1")
    try:
        seconds = float(given)
    except ValueError:
        return order
    if not seconds > 0:
        return order
    within_s = order.timeout_s if streamed else min(order.timeout_s, seconds)
    return replace(order, start_within_s=seconds, timeout_s=within_s)
