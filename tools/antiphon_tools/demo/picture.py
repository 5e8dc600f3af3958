"""Draws a conversation: its waveform, its spectrogram, and a timeline of the stages.

This module requires matplotlib, which is only part of a development installation. Importing the
module without it raises `ImportError`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from antiphon_tools.demo.timeline import PlacedTurn

WINDOW, HOP = 1024, 240
DYNAMIC_RANGE_DB = 70.0
SHOWN_HZ = 8_000
INCHES_PER_S, HEIGHT_INCHES, DOTS_PER_INCH = 0.8, 9.0, 100
NARROWEST_INCHES, WIDEST_INCHES = 12.0, 60.0
CAPTION_CHARACTERS_PER_S = 12
VOICE_COLOURS = ("#1f6f8b", "#b5651d", "#5b7a3a", "#7a4a86")
STAGE_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3")
ARRIVALS = "client"

FloatArray = npt.NDArray[np.float32]


def draw_conversation(
    placed: Sequence[PlacedTurn],
    samples: FloatArray,
    sample_rate_hz: int,
    stages: Sequence[str],
    path: Path,
) -> None:
    """Write the picture as a PNG file. `samples` contains the audio of the complete
    conversation.
    """
    length_s = len(samples) / sample_rate_hz
    inches = min(max(NARROWEST_INCHES, length_s * INCHES_PER_S), WIDEST_INCHES)
    figure = Figure(figsize=(inches, HEIGHT_INCHES), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    wave, spectrum, timeline = figure.subplots(3, 1, sharex=True, height_ratios=(3, 4, 2.2))
    _draw_waveform(wave, placed, samples, sample_rate_hz)
    _draw_spectrogram(spectrum, samples, sample_rate_hz)
    _draw_timeline(timeline, placed, stages)
    for axes in (wave, spectrum, timeline):
        for each in placed:
            axes.axvline(each.asked_s, color="#888888", linewidth=0.8, linestyle=":")
    wave.set_xlim(0.0, length_s)
    timeline.xaxis.set_major_locator(MaxNLocator(2 * int(inches), integer=True))
    figure.align_ylabels()
    figure.savefig(path, format="png")


def _draw_waveform(
    axes: Axes, placed: Sequence[PlacedTurn], samples: FloatArray, sample_rate_hz: int
) -> None:
    """Draw each answer in the color of its voice, with the question and the answer above it."""
    voices = list(dict.fromkeys(each.turn.voice for each in placed))
    for each in placed:
        begin, end = (round(at_s * sample_rate_hz) for at_s in (each.sound_s, each.end_s))
        times = np.arange(begin, min(end, len(samples))) / sample_rate_hz
        colour = VOICE_COLOURS[voices.index(each.turn.voice) % len(VOICE_COLOURS)]
        axes.plot(times, samples[begin:end], color=colour, linewidth=0.4)
        axes.annotate(
            _caption(each),
            (each.asked_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, 6),
            textcoords="offset points",
            fontsize=8,
            verticalalignment="bottom",
            parse_math=False,
        )
    loudest = max(0.05, float(np.abs(samples).max(initial=0.0)))
    axes.set_ylim(-1.05 * loudest, 1.05 * loudest)
    axes.set_ylabel("waveform")


def _caption(placed: PlacedTurn) -> str:
    """Return a turn's text, wrapped to the turn's width on the time axis."""
    width = max(16, int(CAPTION_CHARACTERS_PER_S * (placed.end_s - placed.asked_s)))
    turn = placed.turn
    said = (f"you: {turn.question}", f"{turn.voice}: {turn.answer.reply.text}")
    return "\n".join(
        textwrap.fill(_drawable(each), width, max_lines=4, placeholder=" ...") for each in said
    )


def _drawable(text: str) -> str:
    """Replace characters that the font does not contain."""
    latin = text.encode("latin-1", "replace").decode("latin-1")
    return "".join(each if each.isprintable() else " " for each in latin)


def _draw_spectrogram(axes: Axes, samples: FloatArray, sample_rate_hz: int) -> None:
    decibels = spectrogram_db(samples)
    axes.imshow(
        decibels,
        origin="lower",
        aspect="auto",
        extent=(0.0, decibels.shape[1] * HOP / sample_rate_hz, 0.0, sample_rate_hz / 2000),
        cmap="magma",
    )
    axes.set_ylim(0.0, min(SHOWN_HZ, sample_rate_hz / 2) / 1000)
    axes.set_ylabel("spectrogram, kHz")


def spectrogram_db(samples: FloatArray) -> FloatArray:
    """Return the level of each frequency over time, in dB relative to the maximum.

    The result has shape [513, frames], and its values are at least -70. Column `i` is centered on
    sample `i * HOP`.
    """
    padded = np.pad(samples, WINDOW // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    window = np.hanning(WINDOW).astype(np.float32)
    power = np.abs(np.fft.rfft(frames * window, axis=1)).T ** 2
    tiny = float(np.finfo(np.float32).tiny)
    relative = power / max(float(power.max()), tiny)
    decibels: FloatArray = np.maximum(10 * np.log10(relative + tiny), -DYNAMIC_RANGE_DB)
    return decibels


def _draw_timeline(axes: Axes, placed: Sequence[PlacedTurn], stages: Sequence[str]) -> None:
    """Draw one lane per stage and a lane for the arrival of output at the client.

    A lane is pale until the first output of the stage and fully colored until its last output.
    """
    lanes = [*stages, ARRIVALS]
    for each in placed:
        for span in each.spans:
            row = lanes.index(span.stage)
            colour = STAGE_COLOURS[row % len(STAGE_COLOURS)]
            waits = (span.first_input_s, span.first_output_s - span.first_input_s)
            works = (span.first_output_s, span.last_output_s - span.first_output_s)
            axes.broken_barh([waits], (row - 0.35, 0.7), color=colour, alpha=0.3)
            axes.broken_barh([works], (row - 0.35, 0.7), color=colour)
        row = lanes.index(ARRIVALS)
        axes.vlines(each.arrivals_s, row - 0.3, row + 0.3, color="#333333", linewidth=0.7)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_ylabel("activity of each stage")
    axes.set_xlabel(
        "time in seconds (pale: has input; solid: generates output; ticks: audio arrives)"
    )
