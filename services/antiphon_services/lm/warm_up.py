"""Runs segments through an engine before its stage is ready, so that no request pays for warm-up.

Libraries initialize a kind of product at its first use: a part of a prompt, few rows, as many rows
as slots, a draw and a greedy choice. Graphs are captured when a model is constructed, see
`antiphon_services.lm.graphs`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from antiphon.errors import Internal
from antiphon.runtime.engine import Completed, Engine, Failed, InputChunk, SegmentSettings
from antiphon.values.options import OptionValue
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.frames import PART_ROWS

FRAMES = 2
NO_OPTIONS: Mapping[str, OptionValue] = MappingProxyType({})


def speak(
    engine: Engine,
    edges: str | tuple[str, ...],
    sampling: Sampling,
    slots: int,
    room: int,
    make_input: Callable[[int], Iterable[InputChunk]],
    options: Mapping[str, OptionValue] = NO_OPTIONS,
) -> None:
    """Draw a few frames: one segment, then one in every slot, with output on `edges`.

    `make_input` returns a whole input of a given number of rows. There is `room` for rows including
    draws. `options` are passed with it. Raises `Internal` if the model yields no output.
    """
    room -= FRAMES
    if room < 1:
        return
    outputs = frozenset((edges,) if isinstance(edges, str) else edges)
    sampling = replace(sampling, max_tokens=FRAMES + 1)
    for company, rows in ((1, min(PART_ROWS + 1, room)), (slots, 1)):
        keys = [SegmentKey(f"warm-up {index}", 0) for index in range(company)]
        for index, key in enumerate(keys):
            temperature = sampling.temperature if index % 2 else 0.0
            settings = replace(sampling, temperature=temperature)
            engine.admit(key, SegmentSettings("", settings, outputs, options))
            for chunk in make_input(rows):
                engine.accept(key, chunk)
        complete(engine, keys)


def run_segment(engine: Engine, settings: SegmentSettings, *chunks: InputChunk) -> None:
    """Run one segment whose whole input is `chunks`. Raises `Internal` if it fails."""
    key = SegmentKey("warm-up", 0)
    engine.admit(key, settings)
    for chunk in chunks:
        engine.accept(key, chunk)
    complete(engine, [key])


def complete(engine: Engine, keys: Collection[SegmentKey]) -> None:
    """Step until these segments, whose input is complete, have ended, and release them.

    Raises `Internal` if one fails.
    """
    for failed in run_to_the_end(engine, keys):
        raise Internal(f"warm-up: {failed.error}")


def run_to_the_end(engine: Engine, keys: Collection[SegmentKey]) -> list[Failed]:
    """Step until these segments, whose input is complete, have ended, and release them.

    Returns the failures.
    """
    left, failures = set(keys), []
    while left:
        for event in engine.step():
            if isinstance(event, Failed):
                failures.append(event)
            if isinstance(event, Completed | Failed):
                engine.release(event.key)
                left.remove(event.key)
    return failures
