"""Log probabilities of the tokens in a reply."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    r"""A token of a reply, or an alternative to it.

    `token_bytes` contains the bytes that the token adds to the text, which may be part of a
    character. For a special token, it contains the token's name. `logprob` is the natural logarithm
    of the probability that the model assigns to the token, before temperature, penalties and
    truncation are applied. It may be -inf. `top` contains the most likely tokens at this position,
    in descending order. Their own `top` is empty.
    """

    token_id: int
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()

    @property
    def token(self) -> str:
        r"""The bytes as text. Bytes that do not form a complete character are shown as `\xe4`, for
        example.
        """
        return self.token_bytes.decode("utf-8", "backslashreplace")
