"""Draws spectrograms of generated speech as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from models.recipe.acoustics import RATE, Floats
from models.recipe.espeak import SENTENCE_SPEED, speak

HIGHEST_HZ = 8000
WINDOW, STEP = 512, 120


def draw(path: Path, title: str, rows: Sequence[tuple[str, Floats]]) -> None:
    """Draw a picture with a waveform and a spectrogram for each named recording."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.2 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2 * len(rows), 1, height_ratios=[1, 3] * len(rows), squeeze=False)
    for at, (name, samples) in enumerate(rows):
        wave, spectrum = panels[2 * at, 0], panels[2 * at + 1, 0]
        wave.plot([each / RATE for each in range(len(samples))], samples, linewidth=0.4)
        wave.set(xlim=(0, len(samples) / RATE), ylim=(-1, 1), title=name)
        dither = np.random.default_rng(0).normal(0, 1e-6, len(samples))
        spectrum.specgram(
            samples + dither, NFFT=WINDOW, Fs=RATE, noverlap=WINDOW - STEP, vmin=-120, vmax=-30
        )
        spectrum.set(ylim=(0, HIGHEST_HZ), ylabel="Hz", xlabel="s")
    figure.suptitle(title)
    figure.savefig(path, dpi=80)


def draw_answers(folder: Path, answers: Sequence[tuple[str, str, Floats]]) -> list[Path]:
    """Draw a picture for each (name, text, samples), with the speech of espeak-ng for
    comparison.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text, samples in answers:
        path = folder / f"{name}.png"
        original = speak(text, SENTENCE_SPEED)
        draw(path, text, [("antiphon-demo", samples), ("espeak-ng", original)])
        written.append(path)
    return written
