"""What a GPU replays as graphs is one whole graph to a compiler, too."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antiphon.deployment.schema import StageConfig
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.graphs import Bucketing, Eager
from antiphon_services.qwen3_omni.talker.load import load
from antiphon_testkit.drive_engine import run_segments
from tests.compiled_rows import CompiledRows
from tests.unit.services.grouped_experts import experts_as_on_a_gpu
from tests.unit.services.qwen3_omni.talker.talker_lab import Lab, codes_of

IN_BFLOAT16 = StageConfig(slots=4, dtype="bfloat16")
KEY = SegmentKey("session", 0)


def test_layers_and_code_predictor_compile_without_a_break(small: Lab) -> None:
    turn, compiled = small.turn(1, audio=4), CompiledRows()

    def codes(bucketing: Bucketing) -> npt.NDArray[np.uint16]:
        with experts_as_on_a_gpu():
            engine = load(small.directory, IN_BFLOAT16, bucketing=bucketing).engine
        return codes_of(small, run_segments(engine, {KEY: (turn.settings, turn.chunks())})[KEY])

    assert np.array_equal(codes(compiled), codes(Eager))
    # The pieces of a decoder's forward, and the code predictor's frame, for one row and for more.
    layers = small.model.config.talker_config.text_config.num_hidden_layers
    assert compiled.graphs >= layers + 2
