"""A speech recognizer that uses pocketsphinx, with a bigram model of the expected texts."""

from __future__ import annotations

import collections
import itertools
import math
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soxr

from antiphon.errors import FailedPrecondition
from models.recipe.acoustics import RATE, Floats
from models.recipe.repertoire import UNITS

PACKAGE = "pocketsphinx"
LISTENING_RATE = 16_000
# Words that the default dictionary does not contain, with its phonemes.
SAID = {
    "antiphon": "AE N T IH F AA N",
    "code2wav": "K OW D T UW W EY V",
    "grpc": "JH IY AA R P IY S IY",
    "qwen": "K W EH N",
    "openai": "OW P AH N EY AY",
    "kubernetes": "K UW B ER N EH T IY Z",
    "espeak": "IY S P IY K",
    "codec": "K OW D EH K",
    "omni": "AA M N IY",
    "wav": "W EY V",
    "talker": "T AO K ER",
    "thinker": "TH IH NG K ER",
    "helm": "HH EH L M",
    "piper": "P AY P ER",
}
UNIGRAM_SHARE = 0.2


def normalise(text: str) -> list[str]:
    """Return the words of a text in the notation of the recognizer."""
    words = re.findall(r"code2wav|[a-z]+|[0-9]", text.lower())
    return [UNITS[int(word)] if word.isdigit() else word for word in words]


def word_errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Return the number of substitutions, insertions and deletions between two word sequences."""
    row = list(range(len(heard) + 1))
    for at, word in enumerate(said, 1):
        previous, row[0] = row[0], at
        for column, other in enumerate(heard, 1):
            previous, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, previous + (word != other)),
            )
    return row[-1]


class Recogniser:
    """Recognizes speech at 24 kHz, using the words of the given texts.

    Raises `FailedPrecondition` if pocketsphinx is not installed.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        try:
            import pocketsphinx  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError as error:
            raise FailedPrecondition(f"{PACKAGE}: is not installed") from error
        sentences = [normalise(text) for text in texts]
        models = Path(pocketsphinx.get_model_path()) / "en-us"
        with tempfile.TemporaryDirectory() as folder:
            words = {word for sentence in sentences for word in sentence}
            dictionary = Path(folder) / "words.dict"
            known = _write_dictionary(dictionary, models / "cmudict-en-us.dict", words)
            language = Path(folder) / "bigrams.arpa"
            _write_bigrams(language, sentences, known)
            self._decoder: Any = pocketsphinx.Decoder(
                hmm=str(models / "en-us"),
                dict=str(dictionary),
                lm=str(language),
                loglevel="FATAL",
            )
        self.unknown = sorted(words - known)

    def hear(self, samples: Floats) -> list[str]:
        """Return the words in a recording at 24 kHz."""
        padded = np.pad(samples, (RATE // 5, RATE // 5))
        audio = soxr.resample(padded, RATE, LISTENING_RATE)
        pcm = (np.clip(audio, -1, 1) * 32767).astype("<i2").tobytes()
        self._decoder.start_utt()
        self._decoder.process_raw(pcm, full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return [] if found is None else str(found.hypstr).split()

    def error_rate(self, said: Iterable[str], recordings: Iterable[Floats]) -> float:
        """Return the word error rate of all recordings combined."""
        errors = total = 0
        for text, samples in zip(said, recordings, strict=True):
            expected = normalise(text)
            errors += word_errors(expected, self.hear(samples))
            total += len(expected)
        return errors / total


def _write_dictionary(path: Path, stock: Path, words: set[str]) -> set[str]:
    """Write a dictionary with the default pronunciations and ours. Returns the words it
    contains.
    """
    lines = [f"{word} {phones}" for word, phones in SAID.items() if word in words]
    known = {word for word in SAID if word in words}
    for line in stock.read_text().splitlines():
        word = re.sub(r"\(\d+\)", "", line.split(" ", 1)[0])
        if word in words and word not in SAID:
            lines.append(line)
            known.add(word)
    path.write_text("\n".join(lines) + "\n")
    return known


def _write_bigrams(path: Path, sentences: list[list[str]], known: set[str]) -> None:
    """Write an ARPA bigram model, in which unigrams have a fixed share of the probability."""
    singles: collections.Counter[str] = collections.Counter(known)
    pairs: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for sentence in sentences:
        chain = ["<s>", *(word for word in sentence if word in known), "</s>"]
        singles.update(chain[1:])
        for one, two in itertools.pairwise(chain):
            pairs[one][two] += 1
    total = sum(singles.values())
    count = sum(len(following) for following in pairs.values())
    lines = ["\\data\\", f"ngram 1={len(singles) + 1}", f"ngram 2={count}", "", "\\1-grams:"]
    back = math.log10(UNIGRAM_SHARE)
    lines.append(f"-99.0 <s> {back:.4f}")
    for word, seen in sorted(singles.items()):
        weight = back if pairs.get(word) else 0.0
        lines.append(f"{math.log10(seen / total):.4f} {word} {weight:.4f}")
    lines += ["", "\\2-grams:"]
    for one, following in sorted(pairs.items()):
        seen = sum(following.values())
        for two, times in sorted(following.items()):
            share = (1 - UNIGRAM_SHARE) * times / seen
            lines.append(f"{math.log10(share):.4f} {one} {two}")
    path.write_text("\n".join([*lines, "", "\\end\\", ""]))
