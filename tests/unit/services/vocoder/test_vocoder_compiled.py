"""A call that a GPU replays as a graph is one whole graph to a compiler, too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_services.lm.graphs import Bucketing, Eager
from antiphon_services.vocoder.buckets import Buckets
from antiphon_services.vocoder.pace import DecodePace
from tests.compiled_rows import CompiledRows
from tests.unit.services.vocoder.vocoder_modules import decoder_of, make_codes, piece_of

SLOTS, FRAMES = 2, 2
STEADY = PIPELINE.chunk_policy.steady
PACE = DecodePace(step=SLOTS * STEADY, least=4, padding=256)


@pytest.mark.parametrize("name", ["odd", "released"])
def test_call_compiles_without_a_break(name: str) -> None:
    decoder, codes, compiled = decoder_of(name), make_codes(2 * FRAMES), CompiledRows()

    def samples(bucketing: Bucketing) -> list[Tensor]:
        states = decoder.new_states(SLOTS + 1)
        for slot in range(SLOTS):
            states.reset(slot)
        run = Buckets(decoder, states, bucketing, PACE, STEADY)
        heard = []
        for first in range(0, len(codes), FRAMES):
            pieces = [piece_of(slot, codes[first : first + FRAMES]) for slot in range(SLOTS)]
            with torch.inference_mode():
                rows, spans = decoder.advance(states, pieces, run)
            heard += [row[span].clone() for row, span in zip(rows, spans, strict=True)]
        return heard

    assert all(map(torch.equal, samples(compiled), samples(Eager)))
    assert compiled.graphs == 1
