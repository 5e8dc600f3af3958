"""Measures the steps of single engines with the released sizes and random weights.

On a CPU, which is only used to test the command, the sizes are tiny and the figures are
meaningless.
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.gpu.code2wav_rows import SYNCHRONOUS, code2wav_rows, exactness_rows
from benchmarks.gpu.loaded import Stages
from benchmarks.gpu.report import Row, again
from benchmarks.gpu.scale import EAGER, Way, with_graphs
from benchmarks.gpu.talker_rows import TalkerRows
from benchmarks.gpu.thinker_rows import ThinkerRows


def engine_rows(device: torch.device, directory: Path) -> list[Row]:
    """Return the rows: first the settings of a deployment, then comparisons, and then
    repetitions.
    """
    stages = Stages(device, directory)
    talker, thinker = TalkerRows(stages), ThinkerRows(stages)
    # The thinker launches a step after it has read the output of the previous step.
    ways = with_graphs(device)
    thinkers = [way for way in ways if not way.launch_ahead]
    first = [
        *(row for way in ways for row in talker.frames(way)),
        *(row for way in thinkers for row in thinker.tokens(way)),
        *(row for way in (Way(True), SYNCHRONOUS) for row in code2wav_rows(device, way)),
    ]
    eager = [
        *talker.frames(EAGER),
        *thinker.tokens(EAGER),
        *code2wav_rows(device, EAGER),
    ]
    others = [*talker.recordings(), *thinker.prefills(), *exactness_rows(device)]
    repeated = again([*first, *eager]) if device.type == "cuda" else []
    setup = Row("a checkpoint without weights", stages.write, setup=True)
    freed = Row("the stages are freed", lambda: stages.forget() or {}, setup=True)
    return [setup, *first, *eager, *others, *repeated, freed]
