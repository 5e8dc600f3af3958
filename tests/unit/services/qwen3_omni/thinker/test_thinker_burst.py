"""Many sessions that come at a time share steps, within what suits the device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.engine import LoadedStage
from antiphon.values.conversation import Conversation
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.memory import SlotMemory
from antiphon_services.qwen3_omni.thinker.load import load
from antiphon_services.stage.budgets import (
    ENCODED_AT_LEAST,
    GPU_PREPARED_AT_ONCE,
    GPU_TEXT_ROWS,
    PREFILL_ROWS,
)
from antiphon_services.stage.preparation import SHORT_TEXT_BYTES
from antiphon_services.thinker.engine import ThinkerEngine, ThinkerPreparations
from antiphon_services.thinker.model import ThinkerModel
from antiphon_services.thinker.prompt import PromptFactory
from antiphon_testkit.drive_engine import await_ready
from antiphon_testkit.flat_settings import stage_config
from tests.unit.services.prefill_steps import prefill_steps
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import (
    ask,
    conversation,
    say,
    segment,
)

BURST = 64
KEYS = [SegmentKey(f"session {index}", 0) for index in range(BURST)]
ON_GPU = StageConfig(device="cuda")


@pytest.fixture(scope="module")
def roomy(small_dir: Path) -> LoadedStage:
    return load(small_dir, StageConfig(slots=BURST))


@pytest.fixture
def engines(roomy: LoadedStage) -> Iterator[Any]:
    made: list[ThinkerEngine] = []

    def make(prefill_rows: int, preparations: ThinkerPreparations | None = None) -> ThinkerEngine:
        own = roomy.engine
        assert isinstance(own, ThinkerEngine)
        made.append(
            ThinkerEngine(
                own.model, own.intake, prefill_rows=prefill_rows, preparations=preparations
            )
        )
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def begin(engine: ThinkerEngine, asked: list[Conversation]) -> None:
    for key, each in zip(KEYS, asked, strict=False):
        settings, (chunk,) = segment(each, max_tokens=2)
        engine.admit(key, settings)
        engine.accept(key, chunk)


def prompts_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many prompt rows each forward has from now on; ids of replies are not counted."""
    forwards: list[int] = []
    plain = ThinkerModel.forward

    def counted(self: ThinkerModel, feeds: Any) -> Any:
        forwards.append(
            sum(len(each.ids) for each in feeds if each.start == 0 or len(each.ids) > 1)
        )
        return plain(self, feeds)

    monkeypatch.setattr(ThinkerModel, "forward", counted)
    return forwards


@pytest.mark.parametrize("budget", [PREFILL_ROWS, GPU_TEXT_ROWS])
def test_prompts_of_a_burst_share_as_few_steps_as_the_budget_allows(
    engines: Any, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    engine, forwards = engines(budget), prompts_of(monkeypatch)
    begin(engine, [ask(f"Hello {index}") for index in range(BURST)])
    await_ready(engine, KEYS)
    engine.step()
    generations = [segment.generation for segment in engine.segments.values()]
    assert None not in generations
    rows = sum(each.remaining for each in generations)
    assert PREFILL_ROWS < rows <= GPU_TEXT_ROWS
    while any(each.remaining for each in generations):
        engine.step()
    assert len(forwards) == -(-rows // budget)
    for key in KEYS:
        engine.release(key)


def test_engine_of_a_gpu_makes_few_prompts_by_itself(
    engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(GPU_TEXT_ROWS, ThinkerPreparations.of(ON_GPU, SHORT_TEXT_BYTES))
    here, plain = [], PromptFactory.prepare

    def noted(self: PromptFactory, *args: Any, **kwargs: Any) -> Any:
        here.append(threading.current_thread() is threading.main_thread())
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(PromptFactory, "prepare", noted)
    begin(engine, [ask("Hello")] * (BURST // 2))
    await_ready(engine, KEYS[: BURST // 2])
    assert here.count(True) == GPU_PREPARED_AT_ONCE
    assert len(here) == BURST // 2
    engine.step()
    assert all(each.generation is not None for each in engine.segments.values())
    # After a step it may make as many again.
    settings, (chunk,) = segment(ask("Hello"))
    engine.admit(KEYS[-1], settings)
    engine.accept(KEYS[-1], chunk)
    assert here[-1]
    for key in [*KEYS[: BURST // 2], KEYS[-1]]:
        engine.release(key)


@pytest.mark.parametrize(("budget", "each_step"), [(PREFILL_ROWS, 1), (4 * PREFILL_ROWS, 4)])
def test_recordings_of_a_burst_are_encoded_within_the_budget(
    engines: Any, monkeypatch: pytest.MonkeyPatch, budget: int, each_step: int
) -> None:
    engine, plain = engines(budget), ThinkerModel.encode
    encoded: list[object] = []

    def noted(self: ThinkerModel, piece: Any) -> Any:
        encoded.append(piece)
        return plain(self, piece)

    monkeypatch.setattr(ThinkerModel, "encode", noted)
    sessions = 6
    begin(engine, [conversation(say("What?", 0.2 + 0.05 * at)) for at in range(sessions)])
    await_ready(engine, KEYS[:sessions])
    engine.step()
    counts = []
    while len(encoded) < sessions:
        before = len(encoded)
        engine.step()
        counts.append(len(encoded) - before)
    assert counts == [min(each_step, sessions - at) for at in range(0, sessions, each_step)]
    for key in KEYS[:sessions]:
        engine.release(key)


def test_recording_is_encoded_where_the_budget_is_less_than_it_counts_for(engines: Any) -> None:
    engine = engines(ENCODED_AT_LEAST // 2)
    begin(engine, [conversation(say("What?", 0.2))])
    await_ready(engine, KEYS[:1])
    for _ in range(2):
        engine.step()
    generation = engine.segments[KEYS[0]].generation
    assert generation is not None
    assert not generation.must_encode
    engine.release(KEYS[0])


def test_slots_must_fit_at_their_longest_with_the_rows_that_are_kept_of_them(
    small_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[SlotMemory, bool]] = []
    monkeypatch.setattr(
        SlotMemory, "require_room", lambda self, *, grows=False: asked.append((self, grows))
    )
    engine = load(small_dir, StageConfig(slots=3, context_limit=700)).engine
    assert isinstance(engine, ThinkerEngine)
    ((memory, grows),) = asked
    assert grows
    assert (memory.slots, memory.positions) == (3, 700)
    assert memory.position_bytes > engine.model.cache.memory.position_bytes


@pytest.mark.parametrize(("rows", "expected"), [(128, 3), (256, 2)])
def test_setting_goes_before_what_suits_the_device(
    small_dir: Path, rows: int, expected: int
) -> None:
    engine = load(small_dir, stage_config(slots=2, context_limit=512, prefill_rows=rows)).engine
    long = segment(ask("find the number of days " * 30), max_tokens=1, outputs=frozenset({"text"}))
    steps, positions = prefill_steps(engine, *long)
    assert 128 < positions < 256
    assert steps == expected
