"""Qwen2.5-Omni's thinker on vLLM: ids and rows of the reference, whatever vLLM makes of its memory.

One vLLM for all: prompts go in by 64 ids, there is room for 19 blocks of 32 positions, and a step
hands out 64 rows at most.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import AntiphonError, ErrorCode, Unavailable
from antiphon.pipelines.qwen2_5_omni import PROMPT, TOKENS
from antiphon.runtime.engine import DetachedEngine, InputChunk, LoadedStage, SegmentSettings
from antiphon.values.conversation import Conversation
from antiphon.values.history import History
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen2_5_omni.thinker.load import load
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.qwen2_5_omni.reference import Omni25Reference
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from tests.unit.services.qwen2_5_omni.thinker.omni25_thinker_lab import (
    CONVERSATIONS,
    TEXT,
    Answer,
    answer,
    ids_of,
    recording,
    rows_of,
)
from tests.unit.services.qwen2_5_omni.thinker.omni25_thinker_lab import segment as short_segment

pytest.importorskip("vllm")
psutil = pytest.importorskip("psutil")
prometheus = pytest.importorskip("prometheus_client")

pytestmark = [
    # vLLM starts twice, and its imports alone take long on a busy machine.
    pytest.mark.timeout(900),
    # vLLM and what it imports warn of their own futures.
    pytest.mark.filterwarnings("default"),
]

TIMEOUT_S = 300.0
# Of the largest value: float32 holds rows of these weights no closer.
ROW_TOLERANCE = 1e-5
MAX_TOKENS = 40
LONG = conversation(("user", "The weather and the water. " * 12))
CASES = {**CONVERSATIONS, "long text": (LONG, ())}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its heads are as wide as vLLM has attention for on CPUs."""
    path = tmp_path_factory.mktemp("omni25") / "wide-heads"
    build_tiny_checkpoint(path, TinyOmni25Shape(heads=2, kv_heads=1))
    return path


@pytest.fixture(scope="module")
def answers(checkpoint: Path) -> Mapping[str, Answer]:
    reference = Omni25Reference(checkpoint)
    return {name: answer(reference, *case, MAX_TOKENS) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def stage(checkpoint: Path) -> Iterator[LoadedStage]:
    config = stage_config(
        engine="vllm",
        context_limit=512,
        metrics_listen="127.0.0.1:0",
        hidden_row_bytes=16 * 64 * 64 * 4,
        engine_args={
            "block_size": 32,
            "num_gpu_blocks_override": 20,
            "max_num_batched_tokens": 64,
        },
    )
    made = load(checkpoint, config)
    assert isinstance(made.engine, DetachedEngine)
    yield made
    made.engine.close()


@pytest.fixture
def engine(stage: LoadedStage) -> DetachedEngine:
    assert isinstance(stage.engine, DetachedEngine)
    return stage.engine


def segment(asked: Conversation, **more: Any) -> tuple[SegmentSettings, list[InputChunk]]:
    """Settings and the one input chunk; replies may be longer than a block of vLLM's memory."""
    return short_segment(asked, **{"max_tokens": MAX_TOKENS, **more})


def together(engine: DetachedEngine, names: list[str]) -> list[SegmentOutput]:
    """All in vLLM at once, which stands still until it has been given the last."""
    process = vllm_process()
    process.suspend()
    outputs = {SegmentKey("s", n): SegmentOutput() for n in range(len(names))}
    for key, name in zip(outputs, names, strict=True):
        settings, (chunk,) = segment(CASES[name][0])
        engine.admit(key, settings)
        engine.accept(key, chunk)
    while not all(output.emitted for output in outputs.values()):
        advance(engine, outputs, steps=1)
    process.resume()
    advance(engine, outputs)
    return list(outputs.values())


def assert_right(ours: SegmentOutput, wanted: Answer, most: int = MAX_TOKENS) -> None:
    """The reference's ids, of which there are `most`, and its rows."""
    truth = wanted.truth
    ids = truth.text_ids[:most].tolist()
    assert ids_of(ours) == ids
    assert ours.tensors(PROMPT)["ids"].tolist() == truth.prompt_ids.tolist()
    finish = FinishReason.LENGTH if len(ids) < len(truth.text_ids) else truth.text_finish
    assert ours.completed is not None
    assert ours.completed.finish_reason is finish
    assert ours.completed.input_positions == len(truth.prompt_ids)
    assert [ours.finish_reason(edge) for edge in (TEXT, TOKENS)] == [finish, finish]
    assert_near(rows_of(ours, PROMPT), wanted.prompt_rows)
    if len(ids) > 1:
        assert_near(rows_of(ours, TOKENS), wanted.reply_rows[: len(ids) - 1])
    else:
        assert "rows" not in ours.tensors(TOKENS)


@pytest.mark.parametrize("name", ["recording", "all", "long text"])
def test_reply_and_its_rows_go_on_from_what_is_known(
    engine: DetachedEngine, answers: Mapping[str, Answer], name: str
) -> None:
    settings, chunks = segment(CASES[name][0])
    ids = np.asarray(answers[name].truth.text_ids, np.int32)
    for known in (1, 2, len(ids) // 2, len(ids)):
        asked = replace(settings, history=History(ids=ids[:known]))
        assert_right(run_segment(engine, asked, chunks), answers[name])


def assert_near(rows: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> None:
    assert rows.shape == wanted.shape
    assert np.abs(rows - wanted).max() / np.abs(wanted).max() <= ROW_TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_ids_and_rows_are_the_references_anew_and_from_the_prefix_cache(
    engine: DetachedEngine, answers: Mapping[str, Answer], name: str
) -> None:
    for again in (False, True):
        ours = run_segment(engine, *segment(CASES[name][0]))
        assert_right(ours, answers[name])
        assert ours.completed is not None
        cached = ours.completed.input_cached_positions
        assert cached == (len(answers[name].truth.prompt_ids) - 1) // 32 * 32 if again else True


def test_all_at_once_are_right_when_vllm_throws_requests_out(
    engine: DetachedEngine, answers: Mapping[str, Answer]
) -> None:
    before = thrown_out()
    names = [*CASES, *CASES]
    for name, ours in zip(names, together(engine, names), strict=True):
        assert_right(ours, answers[name])
    assert thrown_out() > before


def test_rows_left_behind_come_when_the_reply_ends_at_once(
    engine: DetachedEngine, answers: Mapping[str, Answer]
) -> None:
    """The prefix cache has more rows than a step hands out, and there is but one step."""
    run_segment(engine, *segment(LONG))
    for most in (1, 2):
        ours = run_segment(engine, *segment(LONG, max_tokens=most))
        assert ours.completed is not None
        assert ours.completed.input_cached_positions > 64
        assert_right(ours, answers["long text"], most)


def test_sessions_that_want_no_speech_get_no_rows(
    engine: DetachedEngine, answers: Mapping[str, Answer]
) -> None:
    written = run_segment(engine, *segment(CASES["turns"][0], outputs=frozenset({TEXT})))
    assert {each.edge for each in written.emitted} == {"text"}
    assert written.tensors("text")["ids"].tolist() == answers["turns"].truth.text_ids.tolist()


def test_others_go_on_when_a_segment_is_released(
    engine: DetachedEngine, answers: Mapping[str, Answer]
) -> None:
    leaving, staying = SegmentKey("leaves", 0), SegmentKey("stays", 0)
    for key, name in ((leaving, "recordings"), (staying, "turns")):
        settings, (chunk,) = segment(CASES[name][0])
        engine.admit(key, settings)
        engine.accept(key, chunk)
    outputs = {staying: SegmentOutput(), leaving: SegmentOutput()}
    while not outputs[leaving].tensors("text"):
        advance(engine, outputs, steps=1)
    if not outputs.pop(leaving).completed:
        engine.release(leaving)
    advance(engine, outputs)
    assert_right(outputs[staying], answers["turns"])


def test_video_is_seen_as_by_the_torch_engine(
    engine: DetachedEngine, checkpoint: Path, tmp_path: Path
) -> None:
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "clip.mp4"
    frames = np.random.default_rng(0).integers(0, 256, (10, 84, 112, 3), np.uint8)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 4.0, (112, 84))
    for frame in frames:
        writer.write(frame)
    writer.release()
    shown = conversation(("user", ["See", path.read_bytes(), "hear", recording(0.9), "so?"]))
    theirs = run_segment(load(checkpoint, StageConfig(engine="torch")).engine, *segment(shown))
    ours = run_segment(engine, *segment(shown))
    assert ids_of(ours) == ids_of(theirs)
    for edge in (PROMPT, TOKENS):
        assert_near(rows_of(ours, edge), rows_of(theirs, edge))


def test_what_is_heard_and_seen_is_told(stage: LoadedStage) -> None:
    assert stage.facts.engine == "vllm"
    assert stage.facts.input_kinds == ("text", "audio", "image", "video")


def test_killed_engine_fails_what_runs_and_comes_back(
    engine: DetachedEngine, answers: Mapping[str, Answer]
) -> None:
    changes: queue.Queue[AntiphonError | None] = queue.Queue()
    engine.watch(changes.put)
    process = vllm_process()
    key, output = SegmentKey("dies", 0), SegmentOutput()
    settings, (chunk,) = segment(CASES["recordings"][0])
    process.suspend()
    engine.admit(key, settings)
    engine.accept(key, chunk)
    while not output.emitted:
        advance(engine, {key: output}, steps=1)
    process.kill()
    advance(engine, {key: output})
    assert output.failed is not None
    assert output.failed.error.code is ErrorCode.UNAVAILABLE
    assert isinstance(changes.get(timeout=TIMEOUT_S), Unavailable)
    assert changes.get(timeout=TIMEOUT_S) is None
    assert_right(run_segment(engine, *segment(CASES["all"][0])), answers["all"])


def vllm_process() -> Any:
    """The process that the model runs in: a child of this one, as no service's is."""
    alive = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    (process,) = [child for child in alive if "EngineCore" in child.name()]
    return process


def thrown_out() -> float:
    """How often vLLM has thrown a request out, to compute it again later."""
    name = "vllm:num_preemptions_total"
    samples = (each for metric in prometheus.REGISTRY.collect() for each in metric.samples)
    return sum(each.value for each in samples if each.name == name)
