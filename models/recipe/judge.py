"""Evaluates the speech of a checkpoint: whether it is understood, and whether seams are audible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from antiphon import ChunkPolicy
from models.recipe.acoustics import FRAME, Floats
from models.recipe.asking import Services, Spoken, load_code2wav
from models.recipe.code2wav_training import decode
from models.recipe.codes import PITCH_GROUP, pulses_of
from models.recipe.espeak import SENTENCE_SPEED, speak, speak_word
from models.recipe.recogniser import Recogniser
from models.recipe.requests import Request
from models.recipe.units import PAUSES, names_of

POLICIES = (
    ChunkPolicy(first=1, ramp=(), steady=1),
    ChunkPolicy(first=3, ramp=(5, 1), steady=7),
    ChunkPolicy(first=4, ramp=(), steady=25),
)
QUIET = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """The results for a set of requests. The rates are word error rates."""

    title: str
    requests: int
    texts_right: int
    generated: float
    espeak_sentences: float
    espeak_words: float


@dataclass(frozen=True, slots=True)
class Seams:
    """The maximum difference from samples that are decoded at once, and the pulse correlations."""

    answers: int
    largest_difference: float
    pulses_within: float
    pulses_across: float


def judge(title: str, answers: Sequence[Spoken]) -> Row:
    """Return word error rates of the answers, and of the expected answers as spoken by espeak-ng.

    The same recognizer is used for all of them. Its language model is built from the expected
    texts.
    """
    texts = tuple(answer.expected for answer in answers)
    return Row(
        title,
        len(answers),
        sum(answer.right for answer in answers),
        _recogniser(texts).error_rate(texts, [answer.samples for answer in answers]),
        *_espeaks_rates(texts),
    )


@cache
def _recogniser(texts: tuple[str, ...]) -> Recogniser:
    return Recogniser(texts)


@cache
def _espeaks_rates(texts: tuple[str, ...]) -> tuple[float, float]:
    """Return the word error rates of sentences and of concatenated words spoken by espeak-ng."""
    recogniser = _recogniser(texts)
    return (
        recogniser.error_rate(texts, [speak(text, SENTENCE_SPEED) for text in texts]),
        recogniser.error_rate(texts, [concatenated(text) for text in texts]),
    )


def concatenated(text: str) -> Floats:
    """Concatenate the words of a text as spoken by espeak-ng. The units were made from these
    words.
    """
    return np.concatenate([speak_word(name) for name in names_of(text) if name not in PAUSES])


async def look_for_seams(services: Services, directory: Path, requests: Sequence[Request]) -> Seams:
    """Compare answers in chunks of different sizes with the result of decoding their codes at
    once.
    """
    module = load_code2wav(directory)
    largest = 0.0
    within: list[float] = []
    across: list[float] = []
    for at, request in enumerate(requests):
        answer = await services.ask(request, POLICIES[at % len(POLICIES)])
        whole = decode(module, answer.codes.astype(np.int64))
        largest = max(largest, float(np.abs(whole - answer.samples).max()))
        inner, outer = pulse_trains(answer.samples, answer.codes)
        within += inner
        across += outer
    return Seams(len(requests), largest, float(np.median(within)), float(np.median(across)))


def pulse_trains(samples: Floats, codes: npt.NDArray[np.uint16]) -> tuple[list[float], list[float]]:
    """Return how well loud sound repeats after one pulse period, within frames and across frames.

    The values are correlations of half a frame with the sound that follows one period later. For
    the first list, they start in the middle of the first half of a frame. For the second list, they
    cross the boundary between two frames with the same pitch, where a lost or duplicated sample
    would be noticeable. Only pitches whose period divides the frame length are used.
    """
    counts = pulses_of(codes[:, PITCH_GROUP].astype(np.int64))
    within: list[float] = []
    across: list[float] = []
    for at in range(len(counts) - 1):
        count = int(counts[at])
        if FRAME % count or counts[at + 1] != count:
            continue
        period = FRAME // count
        for begin, found in ((at * FRAME, within), (at * FRAME + FRAME - period, across)):
            piece = samples[begin : begin + 2 * period].astype(np.float64)
            if len(piece) < 2 * period or piece.std() < QUIET:
                continue
            one, two = piece[:period], piece[period:]
            found.append(float(one @ two / np.sqrt((one @ one) * (two @ two) + 1e-12)))
    return within, across


def table(rows: Sequence[Row], seams: Seams) -> str:
    """Return the results as text."""
    lines = [f"{'':<22}{'asked':>7}{'texts':>7}{'spoken':>9}{'espeak':>9}{'words':>9}"]
    lines += [
        f"{row.title:<22}{row.requests:>7}{row.texts_right:>7}"
        f"{row.generated:>9.3f}{row.espeak_sentences:>9.3f}{row.espeak_words:>9.3f}"
        for row in rows
    ]
    lines += [
        "texts: answers whose text is the expected one; the last three are word error rates:",
        "of the generated speech, of espeak-ng's sentences, of its words side by side",
        f"seams: {seams.answers} answers in chunks, largest difference to the one-shot decode "
        f"{seams.largest_difference:.1e}",
        f"pulse train: correlation over a period {seams.pulses_within:.3f} within frames, "
        f"{seams.pulses_across:.3f} across their boundaries",
    ]
    return "\n".join(lines)
