"""Converts sampled ids to text incrementally, without splitting characters.

Invariant: the concatenated pieces equal `tokenizer.decode(ids, skip_special_tokens=True)` for any
ids, also for a reply that ends inside a character. The vocabulary is byte-level, so an id stands
for bytes. An incremental UTF-8 decoder holds back at most three bytes of an unfinished character
and replaces invalid ones like the tokenizer's decoder. (`tokenizers.DecodeStream` is not used: it
treats a real U+FFFD as an unfinished character, and cannot flush held bytes when the reply ends.)
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase

from antiphon.errors import FailedPrecondition


class Vocabulary:
    """The bytes of each id; shared by all segments."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Read the tokenizer's vocabulary. Raises `FailedPrecondition` if not byte-level."""
        if not isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel):
            raise FailedPrecondition("the tokenizer's decoder is not byte-level")
        byte_by_character = _byte_by_character()
        self._special = {
            id_: token.content.encode()
            for id_, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        self._bytes_by_id = {
            id_: _token_bytes(token, byte_by_character)
            for token, id_ in tokenizer.get_vocab().items()
            if id_ not in self._special
        }

    def token_bytes(self, id_: int) -> bytes:
        """Return the id's bytes; empty for special and unknown ids."""
        return self._bytes_by_id.get(id_, b"")

    def print_bytes(self, id_: int) -> bytes:
        """Return the id's bytes, or a special id's name; empty for unknown ids."""
        return self._special.get(id_) or self.token_bytes(id_)


class Detokenizer:
    """The text of one reply, id by id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id_: int) -> str:
        """Return the whole characters that this id completes."""
        return self._decoder.decode(self._vocabulary.token_bytes(id_))

    def flush(self) -> str:
        """Return the decoding of an unfinished character at the end."""
        return self._decoder.decode(b"", final=True)

    @property
    def inside_character(self) -> bool:
        """Whether bytes of an unfinished character are held back."""
        return bool(self._decoder.getstate()[0])


def _byte_by_character() -> dict[str, int]:
    """Return the byte of each character in byte-level tokens.

    Printable characters of Latin-1 are their own byte; other bytes follow from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


def _token_bytes(token: str, byte_by_character: Mapping[str, int]) -> bytes:
    """Return a byte-level token's bytes. An added token with other characters is its own text."""
    try:
        return bytes(byte_by_character[character] for character in token)
    except KeyError:
        return token.encode()
