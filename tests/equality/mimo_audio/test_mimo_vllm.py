"""The talker with its layers on vLLM makes what the vendor's code and the torch engine make."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import (
    AntiphonError,
    ErrorCode,
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)
from antiphon.pipelines.mimo_audio import CODES, TEXT
from antiphon.runtime.engine import DetachedEngine, Engine, LoadedStage
from antiphon.values.history import History
from antiphon.values.segment import SegmentKey
from antiphon_services.mimo_audio.talker.load import load
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment, run_segments
from antiphon_testkit.mimo_audio.tiny_checkpoint import EMPTY, LANGUAGE_MODEL
from tests.equality.mimo_audio.mimo_asking import asked, assert_as_recorded
from tests.equality.mimo_audio.mimo_cases import CASES
from tests.equality.mimo_audio.mimo_lab import MimoLab, Recorded, recorded_names

pytest.importorskip("vllm")
psutil = pytest.importorskip("psutil")

pytestmark = [
    pytest.mark.equality,
    # vLLM starts twice, and its imports alone take long on a busy machine.
    pytest.mark.timeout(900),
    # vLLM and what it imports warn of their own futures.
    pytest.mark.filterwarnings("default"),
]

BY_NAME = {case.name: case for case in CASES}
PRESET = "marks"
SLOTS = 8
TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def model_dir(mimo_checkpoints: dict[str, Path]) -> Path:
    return mimo_checkpoints[PRESET] / LANGUAGE_MODEL


@pytest.fixture(scope="module")
def stage(model_dir: Path) -> Iterator[LoadedStage]:
    """Prompts and positions of eight sessions go in by 64 at most."""
    config = StageConfig(
        engine="vllm",
        slots=SLOTS,
        context_limit=512,
        engine_args={"block_size": 32, "max_num_batched_tokens": 64},
    )
    made = load(model_dir, config)
    yield made
    assert isinstance(made.engine, DetachedEngine)
    made.engine.close()


@pytest.fixture
def engine(stage: LoadedStage) -> DetachedEngine:
    assert isinstance(stage.engine, DetachedEngine)
    return stage.engine


@pytest.fixture(scope="module")
def torch_engine(model_dir: Path) -> Engine:
    return load(model_dir, StageConfig(slots=SLOTS, context_limit=512)).engine


@pytest.fixture
def group_id(mimo_labs: Mapping[str, MimoLab]) -> int:
    return mimo_labs[PRESET].ids[EMPTY]


def test_every_case_is_answered_as_recorded_in_company(
    engine: DetachedEngine, recorded: Recorded, group_id: int
) -> None:
    """Twice: the second time vLLM finds prompts in its prefix cache."""
    names = [each.partition("/")[2] for each in recorded_names() if each.startswith(PRESET)]
    for start in (0, *range(0, len(names), SLOTS)):
        batch = names[start : start + SLOTS]
        given = {SegmentKey(name, 0): asked(BY_NAME[name]) for name in batch}
        for key, output in run_segments(engine, given).items():
            name = key.session_id
            assert_as_recorded(output, BY_NAME[name], f"{PRESET}/{name}", recorded, group_id)


def test_draws_are_those_of_the_torch_engine(engine: DetachedEngine, torch_engine: Engine) -> None:
    """Ids, codes and log probabilities, although hidden states differ in their last digits."""
    settings, chunks = asked(BY_NAME["tts-english"])
    options = {name: value for name, value in settings.options.items() if name == "task"}
    given = {}
    for seed in range(SLOTS):
        drawn = replace(
            settings.sampling,
            temperature=1.0,
            repetition_penalty=1.1,
            seed=seed,
            max_tokens=40,
            top_logprobs=2,
        )
        key = SegmentKey(f"seed {seed}", 0)
        given[key] = replace(settings, sampling=drawn, options=options), chunks
    ours, theirs = (run_segments(each, given) for each in (engine, torch_engine))
    for key in given:
        assert ours[key].failed is None
        mine, wanted = ours[key].tensors(TEXT), theirs[key].tensors(TEXT)
        assert mine["ids"].tolist() == wanted["ids"].tolist()
        assert mine.keys() == wanted.keys()
        assert len(mine) > 2
        codes = [each[key].tensors(CODES).get(CODES, np.zeros(0)) for each in (ours, theirs)]
        np.testing.assert_array_equal(*codes)


def test_others_go_on_when_a_segment_is_released(
    engine: DetachedEngine, recorded: Recorded, group_id: int
) -> None:
    """And the slot of the released one serves the next."""
    leaving, staying = SegmentKey("leaves", 0), SegmentKey("stays", 0)
    outputs = {leaving: SegmentOutput(), staying: SegmentOutput()}
    for key, name in ((leaving, "tts-long"), (staying, "dialogue-turns")):
        settings, (chunk,) = asked(BY_NAME[name])
        engine.admit(key, settings)
        engine.accept(key, chunk)
    while not outputs[leaving].emitted:
        advance(engine, outputs, steps=1)
    assert outputs.pop(leaving).completed is None
    engine.release(leaving)
    advance(engine, outputs)
    stem = f"{PRESET}/dialogue-turns"
    assert_as_recorded(outputs[staying], BY_NAME["dialogue-turns"], stem, recorded, group_id)
    given = {SegmentKey(f"next {n}", 0): asked(BY_NAME["text-turns"]) for n in range(SLOTS)}
    for output in run_segments(engine, given).values():
        stem = f"{PRESET}/text-turns"
        assert_as_recorded(output, BY_NAME["text-turns"], stem, recorded, group_id)


def test_an_answer_goes_on_from_what_its_client_has(
    engine: DetachedEngine, recorded: Recorded, group_id: int
) -> None:
    name = "dialogue-system"
    stem, (settings, chunks) = f"{PRESET}/{name}", asked(BY_NAME[name])
    ids = recorded.arrays[f"{stem}/text"].astype(np.int32)
    answer = run_segment(engine, settings, chunks)
    codes = answer.tensors(CODES)[CODES]
    for count in (1, len(ids) // 2, len(ids)):
        groups = int((ids[:count] == group_id).sum())
        history = History(ids[:count], codes[: 4 * groups])
        again = run_segment(engine, replace(settings, history=history), chunks)
        assert_as_recorded(again, BY_NAME[name], stem, recorded, group_id)


def test_the_stage_names_its_engine(stage: LoadedStage) -> None:
    assert stage.facts.engine == "vllm"
    assert stage.facts.context_limit == 512


def test_heads_that_vllm_computes_otherwise_are_refused(mimo_checkpoints: dict[str, Path]) -> None:
    with pytest.raises(FailedPrecondition, match="head_dim is 20"):
        load(mimo_checkpoints["widths"] / LANGUAGE_MODEL, StageConfig(engine="vllm"))


def test_memory_that_does_not_hold_all_slots_is_refused(model_dir: Path) -> None:
    """Sessions keep their memory between steps: they could block each other for ever."""
    config = StageConfig(
        engine="vllm",
        slots=SLOTS,
        context_limit=512,
        engine_args={
            "block_size": 32,
            "kv_cache_memory_bytes": 64 << 20,
            "num_gpu_blocks_override": 60,
        },
    )
    with pytest.raises(InvalidArgument, match="reduce slots or context_limit"):
        load(model_dir, config)


def test_killed_engine_fails_what_runs_and_comes_back(
    engine: DetachedEngine, recorded: Recorded, group_id: int
) -> None:
    changes: queue.Queue[AntiphonError | None] = queue.Queue()
    engine.watch(changes.put)
    key, output = SegmentKey("dies", 0), SegmentOutput()
    settings, (chunk,) = asked(BY_NAME["tts-long"])
    engine.admit(key, settings)
    engine.accept(key, chunk)
    while not output.emitted:
        advance(engine, {key: output}, steps=1)
    (process,) = [each for each in psutil.Process().children() if "EngineCore" in each.name()]
    process.kill()
    advance(engine, {key: output})
    assert output.failed is not None
    assert output.failed.error.code is ErrorCode.UNAVAILABLE
    assert isinstance(changes.get(timeout=TIMEOUT_S), Unavailable)
    assert changes.get(timeout=TIMEOUT_S) is None
    answer = run_segment(engine, *asked(BY_NAME["dialogue"]))
    assert_as_recorded(answer, BY_NAME["dialogue"], f"{PRESET}/dialogue", recorded, group_id)
