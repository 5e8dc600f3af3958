"""The eight codes of a frame and their meaning.

Codes 0 to 4 represent the sound of the frame, as a residual k-means quantization. Code 5 contains
the voice, the pitch, and the number of frames that remain in the unit. Code 6 is the index of the
text token that is being spoken. Code 7 is the number of text rows that have been read.

The last three codes turn speech into a small state machine. In each frame, the talker knows which
token it is speaking and the position within the token. It therefore does not have to learn an
alignment, and can speak sequences of words that it has never seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.recipe.acoustics import Floats

Codes = npt.NDArray[np.int64]

GROUPS = 8
ENTRIES = 256
BOOKS = 5
PITCH_GROUP, TOKEN_GROUP, CLOCK_GROUP = 5, 6, 7
COUNTDOWNS = 32
TEXT_OVER = ENTRIES - 1
MOST_TOKENS = ENTRIES - 2

# The number of pulses per frame for each voice: low, middle, raised, high. One pulse is 12.5 Hz.
VOICES: dict[str, tuple[int, int, int, int]] = {
    "cantor": (8, 10, 11, 12),
    "treble": (14, 16, 18, 20),
}
LOW, MIDDLE, RAISED, HIGH = range(4)
PITCHES = sum(len(pulses) for pulses in VOICES.values())

ITERATIONS = 14
VOICED_WEIGHT = 2.0


@dataclass(frozen=True, slots=True)
class Codebooks:
    """Residual codebooks of shape [BOOKS, ENTRIES, features].

    Entry 0 is zero in all codebooks except the first one.
    """

    centroids: Floats

    def encode(self, vectors: Floats) -> Codes:
        """Encode vectors of shape [n, features] to codes of shape [n, BOOKS], greedily."""
        rest, found = vectors.copy(), []
        for book in self.centroids:
            index = _nearest(rest, book)
            rest -= book[index]
            found.append(index)
        return np.stack(found, axis=1)

    def decode(self, codes: Codes) -> Floats:
        """Decode codes of shape [n, BOOKS] to vectors of shape [n, features]."""
        total = sum(book[codes[:, at]] for at, book in enumerate(self.centroids))
        return np.asarray(total, dtype=np.float32)


def fit(vectors: Floats, seed: int) -> Codebooks:
    """Fit codebooks to vectors of shape [n, features]."""
    generator = np.random.default_rng(seed)
    rest, books = vectors.copy(), []
    for at in range(BOOKS):
        book = _k_means(rest, generator)
        if at:
            book[0] = 0.0
        rest -= book[_nearest(rest, book)]
        books.append(book)
    return Codebooks(np.stack(books))


def _k_means(vectors: Floats, generator: np.random.Generator) -> Floats:
    book = vectors[generator.choice(len(vectors), ENTRIES, replace=False)].copy()
    for _ in range(ITERATIONS):
        index = _nearest(vectors, book)
        counts = np.bincount(index, minlength=ENTRIES)
        sums = np.zeros_like(book)
        np.add.at(sums, index, vectors)
        book[counts > 0] = sums[counts > 0] / counts[counts > 0, None]
        empty = np.flatnonzero(counts == 0)
        book[empty] = vectors[generator.choice(len(vectors), len(empty))]
    return book


def _nearest(vectors: Floats, book: Floats) -> Codes:
    distance = (book**2).sum(1) - 2.0 * vectors @ book.T
    return np.asarray(distance.argmin(1), dtype=np.int64)


def pitch_code(voice: int, pitch: npt.ArrayLike, countdown: npt.ArrayLike) -> Codes:
    """Return code 5 for frames of a voice."""
    level = voice * 4 + np.asarray(pitch, dtype=np.int64)
    return np.asarray(level * COUNTDOWNS + np.asarray(countdown, dtype=np.int64))


def pulses_of(codes: Codes) -> Codes:
    """Return the number of pulses per frame that code 5 specifies."""
    table = np.array([count for pulses in VOICES.values() for count in pulses])
    return np.asarray(table[codes // COUNTDOWNS])
