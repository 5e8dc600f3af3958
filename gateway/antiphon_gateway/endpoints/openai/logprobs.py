"""Log probabilities in JSON."""

from __future__ import annotations

LEAST_LOGPROB = -9999.0
"""OpenAI's value for tokens that cannot occur, because JSON cannot represent infinity."""


def finite(logprob: float) -> float:
    """Return the log probability, clamped to a minimum of `LEAST_LOGPROB`."""
    return max(logprob, LEAST_LOGPROB)
