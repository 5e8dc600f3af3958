"""Converts sampled IDs to text one at a time, without splitting characters.

Concatenating the pieces always gives the same result as `tokenizer.decode(ids,
skip_special_tokens=True)`, even if a reply ends in the middle of a character. The vocabulary is
byte-level, so each ID represents a sequence of bytes. An incremental UTF-8 decoder holds back up to
three bytes of an incomplete character and replaces invalid bytes in the same way as the tokenizer's
decoder. `tokenizers.DecodeStream` can't be used for this, because it treats an actual U+FFFD as an
incomplete character and can't return the remaining bytes when the reply ends.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase

from antiphon.errors import FailedPrecondition


class Vocabulary:
    """The bytes that each ID represents. All segments share this object."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Read the tokenizer's vocabulary. Raises `FailedPrecondition` if it is not byte-level."""
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
        """Return the bytes of an ID, or an empty value for special and unknown IDs."""
        return self._bytes_by_id.get(id_, b"")

    def print_bytes(self, id_: int) -> bytes:
        """Return the bytes of an ID, or the name of a special ID. The result is empty for an
        unknown ID.
        """
        return self._special.get(id_) or self.token_bytes(id_)


class Detokenizer:
    """Builds the text of a reply from its IDs."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id_: int) -> str:
        """Return the characters that this ID completes."""
        return self._decoder.decode(self._vocabulary.token_bytes(id_))

    def flush(self) -> str:
        """Return the text for an incomplete character at the end of the reply, if any."""
        return self._decoder.decode(b"", final=True)

    @property
    def inside_character(self) -> bool:
        """Whether bytes of an incomplete character are being held back."""
        return bool(self._decoder.getstate()[0])


def _byte_by_character() -> dict[str, int]:
    """Return the byte that each character represents in byte-level tokens.

    Printable Latin-1 characters represent the byte with the same value. All other bytes are
    represented by characters from U+0100 onwards.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


def _token_bytes(token: str, byte_by_character: Mapping[str, int]) -> bytes:
    """Return the bytes of a byte-level token. If an added token contains other characters, its
    bytes are the UTF-8 encoding of its name.
    """
    try:
        return bytes(byte_by_character[character] for character in token)
    except KeyError:
        return token.encode()
