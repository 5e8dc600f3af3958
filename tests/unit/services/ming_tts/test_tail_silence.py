"""Silence at the end is cut to a tail, in any pieces; silence before it is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from antiphon_services.ming_tts.code2wav.tail_silence import SILENT, WINDOW, TailSilence

Floats = npt.NDArray[np.float32]
TAIL = 3 * WINDOW


def sound(*windows: float) -> Floats:
    """Windows of these mean magnitudes."""
    chance = np.random.default_rng(0)
    return np.concatenate(
        [each * chance.choice([-1, 1], WINDOW).astype(np.float32) for each in windows]
    ).astype(np.float32)


def cut(samples: Floats, sizes: Sequence[int], tail: int = TAIL) -> Floats:
    stream, made, at = TailSilence(tail), [], 0
    for size in sizes:
        made.append(stream.advance(samples[at : at + size], finished=False))
        at += size
    return np.concatenate([*made, stream.advance(samples[at:], finished=True)])


def vendors(samples: Floats, tail: int) -> Floats:
    """`trim_trailing_silence` of the vendor, of whole windows."""
    scores = np.abs(samples.reshape(-1, WINDOW)).mean(1)
    loud = np.flatnonzero(scores > SILENT)
    return samples[: (loud[-1] + 1) * WINDOW + tail] if len(loud) else samples[:tail]


QUIET, LOUD = SILENT / 2, 0.1
SOUNDS = {
    "silence at the end": sound(LOUD, QUIET, LOUD, *[QUIET] * 8),
    "a short silence": sound(LOUD, LOUD, QUIET),
    "silence alone": sound(*[QUIET] * 9),
    "silence first": sound(*[QUIET] * 9, LOUD),
    "a loud end": sound(LOUD, LOUD),
}


@pytest.mark.parametrize("tail", [0, TAIL])
@pytest.mark.parametrize("name", SOUNDS)
def test_whole_windows_are_cut_as_the_vendor_cuts_them(name: str, tail: int) -> None:
    samples = SOUNDS[name]
    np.testing.assert_array_equal(cut(samples, [], tail), vendors(samples, tail))


@pytest.mark.parametrize("size", [1_000, WINDOW - 1, WINDOW, WINDOW + 1, 14_112])
@pytest.mark.parametrize("name", SOUNDS)
def test_any_pieces_are_cut_alike(name: str, size: int) -> None:
    samples = SOUNDS[name]
    pieces = cut(samples, [size] * (len(samples) // size))
    np.testing.assert_array_equal(pieces, cut(samples, []))


@pytest.mark.parametrize("last", [1, 500, WINDOW - 1])
def test_a_loud_end_shorter_than_a_window_is_kept(last: int) -> None:
    samples = np.concatenate((sound(LOUD, QUIET, QUIET), sound(LOUD)[:last]))
    for sizes in ([], [WINDOW, 2 * WINDOW], [len(samples)]):
        np.testing.assert_array_equal(cut(samples, sizes), samples)


def test_loud_windows_leave_at_once() -> None:
    stream = TailSilence(TAIL)
    assert len(stream.advance(sound(LOUD, LOUD)[: WINDOW + 9], finished=False)) == WINDOW
    assert len(stream.advance(sound(LOUD)[9:], finished=False)) == WINDOW
    assert len(stream.advance(sound(QUIET, QUIET), finished=False)) == 0


def test_a_stream_without_samples_ends() -> None:
    assert len(cut(np.empty(0, np.float32), [])) == 0
