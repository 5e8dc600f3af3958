"""What identifies a parameter of a test."""

from __future__ import annotations

# A longer text is not a part of a test's id.
LONGEST_ID = 100


def parameter_id(value: object, argument: str) -> str | None:
    """The argument's name where the value is bytes or a long text; None where pytest is to choose.

    The workers of pytest-xdist must collect the same ids, and some files contain the time at which
    they were made: libsndfile writes it into a WAV file of floats.
    """
    if isinstance(value, bytes | bytearray):
        return argument
    return argument if isinstance(value, str) and len(value) > LONGEST_ID else None
