"""Which budget a step has is told by the device, and by the setting before that."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.engine import EngineEvent, InputChunk, SegmentSettings
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.frame_engine import FrameEngine, next_parts
from antiphon_services.lm.frames import PART_ROWS, FrameSegment
from antiphon_services.lm.kept_parts import KeptParts
from antiphon_services.lm.pending_step import PendingStep
from antiphon_services.lm.readback import Drawn
from antiphon_services.stage.budgets import (
    GPU_FRAME_ROWS,
    GPU_PREPARED_AT_ONCE,
    GPU_SMALL_THREADS,
    GPU_TEXT_ROWS,
    PREFILL_ROWS,
    frame_rows,
    text_rows,
)
from antiphon_services.stage.preparation import SMALL_AT_ONCE, Preparations
from antiphon_testkit.flat_settings import stage_config

TIMEOUT_S = 120.0
CPU, GPU = StageConfig(), StageConfig(device="cuda:1")
GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=9)


@pytest.mark.parametrize(
    ("config", "thinker", "talker"),
    [
        (CPU, PREFILL_ROWS, PREFILL_ROWS),
        (GPU, GPU_TEXT_ROWS, GPU_FRAME_ROWS),
        (stage_config(prefill_rows=300), 300, 300),
        (stage_config(device="cuda", prefill_rows=300), 300, 300),
    ],
)
def test_rows_of_a_step_suit_the_device(config: StageConfig, thinker: int, talker: int) -> None:
    assert (text_rows(config), frame_rows(config)) == (thinker, talker)
    assert min(thinker, talker) >= PART_ROWS


@pytest.mark.parametrize("rows", [127, 65_537, 0])
def test_setting_is_a_part_of_a_prompt_at_least(rows: int) -> None:
    with pytest.raises(msgspec.ValidationError, match="prefill_rows"):
        msgspec.convert({"prefill_rows": rows}, StageConfig)


@dataclass
class Known:
    """A prompt of so many rows, all of which are there."""

    prompt_rows: int
    silent: bool = False
    cuts: npt.NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))

    @property
    def ready_rows(self) -> int:
        return self.prompt_rows

    def accept(self, chunk: InputChunk) -> None:
        """Nothing more comes."""

    def part_name(self, start: int, stop: int) -> bytes | None:
        return None

    def pass_part(self, start: int, stop: int) -> None:
        """Nothing is held."""


class Reading(FrameSegment[Known]):
    """A segment that says nothing."""

    def has_row(self, step: int) -> bool:
        return False

    def take_text(self, step: int) -> None:
        """There is none."""

    missing_edge = "tokens"


def burst(rows: int) -> list[Reading]:
    return [Reading(SegmentKey(f"{at}", 0), "", GREEDY, Known(rows), at) for at in range(64)]


@pytest.mark.parametrize(("budget", "steps"), [(PREFILL_ROWS, 8), (GPU_FRAME_ROWS, 1)])
def test_prompts_of_a_burst_share_as_few_steps_as_the_budget_allows(
    budget: int, steps: int
) -> None:
    # Of each prompt the last row is a draw's.
    sessions, counts = burst(33), []
    while parts := next_parts(sessions, budget):
        counts.append(sum(part.stop - part.start for part in parts))
    assert sum(counts) == 64 * 32
    assert len(counts) == steps
    assert max(counts) <= budget


class Slotless:
    """What an engine's model keeps of prompts: nothing."""

    def __init__(self) -> None:
        self.kept, self.code_sizes = KeptParts(), ()

    def take_slot(self, session: str, *, returns: bool) -> int:
        return 0

    def give_slot_back(self, slot: int, doubtful: range) -> None:
        """Nothing was taken."""


class Drawing(FrameEngine[Reading, Slotless]):
    role, edge = "reader", "codes"

    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> Reading:
        raise NotImplementedError

    def launch(self, segments: Sequence[Reading], events: list[EngineEvent]) -> PendingStep | None:
        raise NotImplementedError

    def take_drawn(self, segment: Reading, drawn: Drawn) -> Sequence[EngineEvent]:
        raise NotImplementedError


@pytest.mark.parametrize("budget", [PREFILL_ROWS, 1000])
def test_engine_takes_as_many_rows_as_its_budget_has_room_for(budget: int) -> None:
    engine = Drawing(Slotless(), 4096, prefill_rows=budget)
    parts = engine.take_parts(burst(33))
    assert sum(part.stop - part.start for part in parts) == budget // 32 * 32
    assert engine.left_of_budget(parts) == budget % 32


@pytest.mark.parametrize(
    ("config", "at_once", "threads"),
    [(CPU, 64, SMALL_AT_ONCE), (GPU, GPU_PREPARED_AT_ONCE, GPU_SMALL_THREADS)],
)
def test_short_prompts_made_at_once_and_threads_for_others_suit_the_device(
    config: StageConfig, at_once: int, threads: int
) -> None:
    preparations: Preparations[bool] = Preparations.of(config, 100)
    main = threading.main_thread()
    keys = [SegmentKey(f"{at}", 0) for at in range(64)]
    for _ in range(2):
        made = [
            preparations.begin(
                key, lambda: threading.current_thread() is main, text_bytes=1, media_bytes=0
            )
            for key in keys
        ]
        assert [each.result(TIMEOUT_S) for each in made].count(True) == at_once
        preparations.begin_step()
    together = threading.Barrier(threads + 1)
    for key in keys[:threads]:
        preparations.begin(
            key, lambda: together.wait(TIMEOUT_S) >= 0, text_bytes=200, media_bytes=0
        )
    together.wait(TIMEOUT_S)
    preparations.close()
