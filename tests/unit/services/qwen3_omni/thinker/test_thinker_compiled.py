"""What a GPU replays as graphs is one whole graph to a compiler, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from antiphon.deployment.schema import StageConfig
from antiphon.values.chunk import Tensor
from antiphon_services.lm.graphs import Bucketing, Eager
from antiphon_services.qwen3_omni.thinker.load import load
from antiphon_testkit.drive_engine import run_segment
from tests.compiled_rows import CompiledRows
from tests.unit.services.grouped_experts import experts_as_on_a_gpu
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import ask, segment

IN_BFLOAT16 = StageConfig(slots=2, dtype="bfloat16")
TOKENS = 5


def test_layers_compile_without_a_break(small_dir: Path) -> None:
    compiled = CompiledRows()

    def ids(bucketing: Bucketing) -> Tensor:
        with experts_as_on_a_gpu():
            engine = load(small_dir, IN_BFLOAT16, bucketing=bucketing).engine
        asked = segment(ask("Hello"), max_tokens=TOKENS, outputs=frozenset({"text"}))
        told = run_segment(engine, *asked).emitted
        return np.concatenate([each.tensors["ids"] for each in told if "ids" in each.tensors])

    assert np.array_equal(ids(compiled), made := ids(Eager))
    assert len(made) > 1
    assert compiled.graphs > 1
