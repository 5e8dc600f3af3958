"""Turns sampled ids into text as they come, never splitting a character.

Law: the pieces joined equal `tokenizer.decode(ids, skip_special_tokens=True)` for
any ids, also for a reply cut inside a character. The vocabulary is byte-level, so
an id stands for bytes; an incremental UTF-8 decoder holds at most three bytes of an
unfinished character back and replaces invalid ones as the tokenizer's decoder does.
(`tokenizers.DecodeStream` is not used: it takes a real U+FFFD for an unfinished
character, and it cannot let go of what it holds back when the reply ends.)
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping

from tokenizers import decoders
from transformers import PreTrainedTokenizerBase

from antiphon.errors import FailedPrecondition


class Vocabulary:
    """The bytes that each id contributes to a text; shared by all segments."""

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
        """The id's bytes; none for special ids and for ids beyond the vocabulary."""
        return self._bytes_by_id.get(id_, b"")

    def print_bytes(self, id_: int) -> bytes:
        """The id's bytes, or a special id's name; none for ids beyond the vocabulary."""
        return self._special.get(id_) or self.token_bytes(id_)


class Detokenizer:
    """The text of one reply, id by id."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id_: int) -> str:
        """The whole characters that this id completes."""
        return self._decoder.decode(self._vocabulary.token_bytes(id_))

    def flush(self) -> str:
        """What an unfinished character at the very end decodes to."""
        return self._decoder.decode(b"", final=True)

    @property
    def inside_character(self) -> bool:
        """Whether bytes of an unfinished character are held back."""
        return bool(self._decoder.getstate()[0])


def _byte_by_character() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for.

    Printable characters of Latin-1 are their own byte, the other bytes follow from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


def _token_bytes(token: str, byte_by_character: Mapping[str, int]) -> bytes:
    """A byte-level token's bytes; an added token with other characters is itself."""
    try:
        return bytes(byte_by_character[character] for character in token)
    except KeyError:
        return token.encode()
