"""Runs segments through an engine before its stage is ready, so that the first requests aren't
slowed down by initialization.

Libraries initialize each kind of product the first time it is used. The kinds are a prompt part, a
small number of rows, one row per slot, a random draw and a greedy choice. Graphs have already been
captured when the model was constructed (`antiphon_services.lm.graphs`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from antiphon.errors import Internal
from antiphon.runtime.engine import Completed, Engine, Failed, InputChunk, SegmentSettings
from antiphon.transport.heap import return_unused_memory
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
    """Draw a few frames for a single segment and then for one segment in every slot. `edges` are
    the output edges.

    `make_input` returns a complete input with the given number of rows. There is space for `room`
    rows, including draws. `options` are passed along with the input. Raises `Internal` if the model
    generates no output.
    """
    return_unused_memory()
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
    """Run one segment whose complete input is `chunks`. Raises `Internal` if it fails."""
    key = SegmentKey("warm-up", 0)
    engine.admit(key, settings)
    for chunk in chunks:
        engine.accept(key, chunk)
    complete(engine, [key])


def complete(engine: Engine, keys: Collection[SegmentKey]) -> None:
    """Step until these segments have ended and then release them. Their input must be complete.

    Raises `Internal` if any of them fails.
    """
    for failed in run_to_the_end(engine, keys):
        raise Internal(f"warm-up: {failed.error}")


def run_to_the_end(engine: Engine, keys: Collection[SegmentKey]) -> list[Failed]:
    """Step until these segments have ended and then release them. Their input must be complete.

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
