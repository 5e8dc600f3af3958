"""Log probabilities in JSON."""

from __future__ import annotations

LEAST_LOGPROB = -9999.0
"""OpenAI's value for tokens that can't occur. It is needed because JSON can't represent
infinity.
"""


def finite(logprob: float) -> float:
    """Return the log probability, clamped to a minimum of `LEAST_LOGPROB`."""
    return max(logprob, LEAST_LOGPROB)
