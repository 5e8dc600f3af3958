"""Log probabilities of a reply's tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    r"""A token of a reply, or one that might have been in its place.

    `token_bytes` is what it adds to the text, perhaps a part of a character; of a
    special id, its name. `logprob` is the natural logarithm of its probability by the
    model, before temperature, penalties and cuts; it may be -inf. `top` are the
    likeliest tokens in its place, in descending order, without `top` of their own.
    """

    token_id: int
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()

    @property
    def token(self) -> str:
        r"""The bytes as text; those that are no whole character as `\xe4`."""
        return self.token_bytes.decode("utf-8", "backslashreplace")
