"""The tokenizer, in which every word that the checkpoint knows is a single token.

It is a byte-level BPE with Qwen's pre-tokenization, special tokens and chat template. With one
token per word, the text can run ahead of the speech. It also allows the spellings of a word (with
or without a leading space, with or without a capital letter) to share most of their embedding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from antiphon_testkit.qwen3_omni.tiny_tokenizer import PREPROCESSOR, TOKENIZER
from antiphon_testkit.tiny_tokenizer import TinyVocabulary
from models.recipe.repertoire import UNITS, spoken_words, written_forms
from models.recipe.units import PAUSES

ROLES = ("assistant", "system", "user")
WHOLE_SCALE, VARIANT_SCALE = 0.5, 0.2
SPACE = "Ġ"


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a token: the unit that is spoken for it, and its spelling."""

    unit: str
    spaced: bool
    capital: bool
    digit: bool


def write_tokenizer(directory: Path) -> TinyVocabulary:
    """Write the tokenizer, the chat template and the preprocessor, and return the vocabulary."""
    tokenizer = TOKENIZER.save(directory, *_learn(_spellings()))
    PREPROCESSOR.write(directory)
    return TinyVocabulary.of(tokenizer)


def _spellings() -> list[str]:
    """Return all spellings that should become a token, in byte characters, starting with short
    ones.
    """
    found = set(ROLES)
    for form in written_forms():
        found |= {form, form.lower(), form.capitalize()}
    ordered = sorted(found, key=lambda form: (len(form), form.lower(), form))
    return [*ROLES, *ordered, *(SPACE + form for form in ordered)]


def _learn(spellings: Iterable[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return a BPE in which every spelling is a single token.

    Each spelling is split by the existing merges, and the pieces are merged from left to right. New
    merges have the lowest rank, so that they do not affect earlier spellings.
    """
    vocab = {character: index for index, character in enumerate(_byte_characters())}
    ranks: dict[tuple[str, str], int] = {}
    for spelling in spellings:
        pieces = _split(spelling, ranks)
        head = pieces[0]
        for piece in pieces[1:]:
            ranks[head, piece] = len(ranks)
            head += piece
            vocab.setdefault(head, len(vocab))
    return vocab, list(ranks)


def _split(spelling: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Return the pieces into which the merges split a spelling."""
    pieces = list(spelling)
    while len(pieces) > 1:
        pairs = list(itertools.pairwise(pieces))
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        at, merged = 0, []
        while at < len(pieces):
            joined = tuple(pieces[at : at + 2]) == best
            merged.append("".join(best) if joined else pieces[at])
            at += 2 if joined else 1
        pieces = merged
    return pieces


def _byte_characters() -> list[str]:
    """Return the printable character that represents each byte (GPT-2's `bytes_to_unicode`)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def meanings(vocabulary: TinyVocabulary) -> dict[int, Meaning]:
    """Return the meanings of spoken tokens, ordered by token ID.

    A tokenizer lists its vocabulary in a different order each time it is loaded, but random choices
    among these tokens must only depend on the seed.
    """
    words, found = set(spoken_words()), {}
    for index, token in sorted((index, token) for token, index in vocabulary.ids.items()):
        text = token.removeprefix(SPACE)
        spaced, low = token.startswith(SPACE), text.lower()
        if token == SPACE:
            found[index] = Meaning(" ", spaced=True, capital=False, digit=False)
        elif low in PAUSES and not spaced:
            found[index] = Meaning(low, spaced=False, capital=False, digit=False)
        elif len(low) == 1 and low in "0123456789" and not spaced:
            found[index] = Meaning(UNITS[int(low)], spaced=False, capital=False, digit=True)
        elif low in words and text.isascii():
            capital = text != low
            found[index] = Meaning(low, spaced=spaced, capital=capital, digit=False)
    return found


def embed(vocabulary: TinyVocabulary, rows: int, width: int, seed: int) -> torch.Tensor:
    """Return the word embeddings of the thinker, of shape [rows, width], which are not trained.

    All spellings of a word share a random vector. The leading space, the capital letter and the
    digit each add another vector. All other embeddings are random.
    """
    generator = torch.Generator().manual_seed(seed)
    table = WHOLE_SCALE * torch.randn(rows, width, generator=generator)
    space, capital, digit = VARIANT_SCALE * torch.randn(3, width, generator=generator)
    known = meanings(vocabulary)
    names = sorted({meaning.unit for meaning in known.values()})
    shared = dict(
        zip(names, WHOLE_SCALE * torch.randn(len(names), width, generator=generator), strict=True)
    )
    for index, meaning in sorted(known.items()):
        vector = shared[meaning.unit] + meaning.spaced * space + meaning.capital * capital
        table[index] = vector + meaning.digit * digit
    return table
