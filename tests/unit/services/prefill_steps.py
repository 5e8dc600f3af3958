"""How many steps an engine needs for a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.runtime.engine import Engine, InputChunk, SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_testkit.drive_engine import SegmentOutput, advance


def prefill_steps(
    engine: Engine, settings: SegmentSettings, chunks: Sequence[InputChunk]
) -> tuple[int, int]:
    """The steps up to the first output, and the positions of the whole prompt."""
    key, output, steps = SegmentKey("prefilled", 0), SegmentOutput(), 0
    engine.admit(key, settings)
    for chunk in chunks:
        engine.accept(key, chunk)
    while not output.emitted:
        advance(engine, {key: output}, steps=1)
        assert output.failed is None
        steps += 1
    advance(engine, {key: output})
    assert output.completed is not None
    return steps, output.completed.input_positions
