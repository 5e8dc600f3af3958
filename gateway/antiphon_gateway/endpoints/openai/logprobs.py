"""Log probabilities as JSON has them."""

from __future__ import annotations

LEAST_LOGPROB = -9999.0
"""OpenAI's number for what cannot come: JSON has no infinity."""


def finite(logprob: float) -> float:
    """The log probability, at least `LEAST_LOGPROB`."""
    return max(logprob, LEAST_LOGPROB)
