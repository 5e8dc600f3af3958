"""The vLLM engine without a service around it, held against the torch engine."""

from __future__ import annotations

import dataclasses
import io
import queue
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from antiphon.deployment.schema import StageConfig
from antiphon.errors import (
    AntiphonError,
    ErrorCode,
    FailedPrecondition,
    InvalidArgument,
    Unavailable,
)
from antiphon.runtime.engine import DetachedEngine, Engine, InputChunk, SegmentSettings
from antiphon.values.history import History
from antiphon.values.sampling import stream_key
from antiphon.values.segment import SegmentKey
from antiphon.wire.logprobs import logprobs_from_tensors
from antiphon_services.qwen3_omni.thinker.load import load
from antiphon_services.text.detokenizer import Vocabulary
from antiphon_services.vllm.scores import scores_at
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment
from antiphon_testkit.qwen3_omni.tiny_checkpoint import OTHER, TinyShape, build_tiny_checkpoint
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import (
    AUDIO,
    EVERYTHING,
    TEXT,
    ask,
    segment,
)
from tests.unit.services.qwen3_omni.thinker.thinker_reference import (
    MAX_TOKENS,
    Reference,
    assert_logprobs_equal,
    clear_replies,
)

psutil = pytest.importorskip("psutil")
prometheus = pytest.importorskip("prometheus_client")
vllm_logprobs = pytest.importorskip("vllm.logprobs")

pytestmark = [
    # vLLM starts several times, and its imports alone take long on a busy machine.
    pytest.mark.timeout(900),
    # vLLM and what it imports warn of their own futures.
    pytest.mark.filterwarnings("default"),
]


def png(width: int, height: int) -> bytes:
    """A file of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 80, 40)).save(file, "PNG")
    return file.getvalue()


MEMORY = {"kv_cache_memory_bytes": 64 << 20}
TIMEOUT_S = 300.0
# Of the largest value: float32 holds rows of these weights no closer.
ROW_TOLERANCE = 1e-5
Segments = Mapping[SegmentKey, tuple[SegmentSettings, list[InputChunk]]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("other") / "tiny-other"
    build_tiny_checkpoint(made, OTHER, seed=4)
    return made


@pytest.fixture(scope="module")
def torch_engine(directory: Path) -> Engine:
    return load(directory, StageConfig(engine="torch")).engine


def start(
    directory: Path, context_limit: int = 1024, *, metrics_listen: str = "", **engine_args: object
) -> DetachedEngine:
    config = StageConfig(
        engine="vllm",
        context_limit=context_limit,
        metrics_listen=metrics_listen,
        engine_args=engine_args,
    )
    stage = load(directory, config)
    assert stage.facts.engine == "vllm"
    assert isinstance(stage.engine, DetachedEngine)
    return stage.engine


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[DetachedEngine]:
    made = start(directory, block_size=32, **MEMORY)
    yield made
    made.close()


def together(engine: Engine, segments: Segments) -> dict[SegmentKey, SegmentOutput]:
    """All in the engine at once."""
    outputs = {key: SegmentOutput() for key in segments}
    for key, (settings, (chunk,)) in segments.items():
        engine.admit(key, settings)
        engine.accept(key, chunk)
    advance(engine, outputs)
    return outputs


def assert_same(ours: SegmentOutput, torchs: SegmentOutput) -> None:
    """The same chunks, but for rounding in the rows and for how many messages bring them."""
    assert ours.failed is None, ours.failed
    for edge in ("text", "tokens"):
        here, there = ours.tensors(edge), torchs.tensors(edge)
        assert {name: each.tolist() for name, each in here.items()} == {
            name: each.tolist() for name, each in there.items()
        }
        assert ours.finish_reason(edge) is torchs.finish_reason(edge)
    here, there = ours.tensors("prompt"), torchs.tensors("prompt")
    assert here["ids"].tolist() == there["ids"].tolist()
    assert ours.finish_reason("prompt") is torchs.finish_reason("prompt")
    assert set(here) == set(there)
    if "rows" in there:
        assert here["row_positions"].tolist() == there["row_positions"].tolist()
        scale = np.abs(there["rows"]).max()
        error = np.abs(here["rows"] - there["rows"]).max() / scale
        assert error <= ROW_TOLERANCE
    assert ours.completed is not None
    assert torchs.completed is not None
    for name in ("finish_reason", "input_positions", "output_positions", "input_audio_positions"):
        assert getattr(ours.completed, name) == getattr(torchs.completed, name)


def test_segments_equal_the_torch_engine_alone_and_together(
    engine: DetachedEngine, torch_engine: Engine
) -> None:
    expected = [run_segment(torch_engine, *segment(each)) for each in EVERYTHING]
    for spoken_to, torchs in zip(EVERYTHING, expected, strict=True):
        assert_same(run_segment(engine, *segment(spoken_to)), torchs)
    segments = {SegmentKey("s", n): segment(each) for n, each in enumerate(EVERYTHING)}
    for key, ours in together(engine, segments).items():
        assert_same(ours, expected[key.segment])


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 3}])
def test_reply_goes_on_from_what_is_known_of_it(
    engine: DetachedEngine, sampling: dict[str, Any]
) -> None:
    """Greedy ones are ordered behind their prompt; vLLM would draw others there."""
    settings, chunks = segment(AUDIO[2], **sampling)
    whole = run_segment(engine, settings, chunks)
    ids = whole.tensors("text")["ids"]
    for known in (1, 2, len(ids) // 2, len(ids) - 1, len(ids)):
        history = History(ids=ids[:known])
        again = run_segment(engine, dataclasses.replace(settings, history=history), chunks)
        assert_same(again, whole)


def test_rows_come_again_when_the_prefix_cache_spares_them(
    engine: DetachedEngine, torch_engine: Engine
) -> None:
    run_segment(engine, *segment(AUDIO[1]))
    again = run_segment(engine, *segment(AUDIO[1]))
    assert again.completed is not None
    assert again.completed.input_cached_positions >= 32
    assert_same(again, run_segment(torch_engine, *segment(AUDIO[1])))


def test_logprobs_equal_the_references_in_the_company_of_those_who_do_not_ask(
    engine: DetachedEngine, directory: Path
) -> None:
    """Every third segment asks, for 0, 3, 6, ... of the likeliest; the others get nothing."""
    reference = Reference(directory)
    cases = clear_replies(reference, EVERYTHING, MAX_TOKENS)
    vocabulary = Vocabulary(reference.tokenizer)
    segments = {
        SegmentKey("s", n): segment(each, top_logprobs=None if n % 3 else n)
        for n, (each, _) in enumerate(cases)
    }
    assert len(segments) > 6
    for key, ours in together(engine, segments).items():
        _, expected = cases[key.segment]
        assert ours.failed is None, ours.failed
        text = ours.tensors("text")
        assert text["ids"].tolist() == expected.ids
        if key.segment % 3:
            assert set(text) == {"ids", "utf8"}
        else:
            tokens = logprobs_from_tensors(text)
            assert_logprobs_equal(tokens, expected, vocabulary, key.segment)


def test_scores_are_the_same_when_vllm_joins_updates() -> None:
    """vLLM joins what waits for a busy reader, and then drops what is there twice."""

    def update(sampled: int, logprob: float, rank: int) -> Any:
        flat = vllm_logprobs.FlatLogprobs()
        ids, logprobs = [sampled, 7, 5, 9], [logprob, -1.0, -2.0, -3.0]
        append = vllm_logprobs.append_logprobs_for_next_position
        append(flat, ids, logprobs, [None] * 4, rank, 3)
        return flat

    sampled = [(5, -2.0, 2), (1, -8.0, 40), (7, -1.0, 1)]
    joined = vllm_logprobs.FlatLogprobs()
    for each in sampled:
        joined.extend(update(*each))
    ids = [id_ for id_, _, _ in sampled]
    assert len(joined.token_ids) == 3 + 4 + 3
    for at, each in enumerate(sampled):
        assert scores_at(joined, at, ids, 3) == scores_at(update(*each), 0, ids[at : at + 1], 3)


def test_logprobs_are_the_models_own_when_ids_are_drawn_and_penalised(
    engine: DetachedEngine,
) -> None:
    """The first id's distribution is the same, whatever is made of it."""
    drawn = {"temperature": 1.7, "top_k": 3, "top_p": 0.9, "repetition_penalty": 1.9, "seed": 5}
    wanted = {"max_tokens": 1, "top_logprobs": 20}
    given = [segment(AUDIO[1], **wanted), segment(AUDIO[1], **wanted, **drawn)]
    plain, other = (
        logprobs_from_tensors(run_segment(engine, *each).tensors("text")) for each in given
    )
    assert plain[0].top == other[0].top
    assert len(plain[0].top) == 20


def test_stop_strings_cut_as_in_the_torch_engine(
    engine: DetachedEngine, torch_engine: Engine
) -> None:
    whole = run_segment(torch_engine, *segment(TEXT[0]))
    text = whole.tensors("text")["utf8"].tobytes().decode()
    for stop in (text[4:6], text[-3:]):
        given = segment(TEXT[0], stop=(stop,))
        assert_same(run_segment(engine, *given), run_segment(torch_engine, *given))
        asking = segment(TEXT[0], stop=(stop,), top_logprobs=1)
        here, there = (
            logprobs_from_tensors(run_segment(each, *asking).tensors("text"))
            for each in (engine, torch_engine)
        )
        assert [each.token_id for each in here] == [each.token_id for each in there]


def test_repetition_is_penalised_as_in_the_torch_engine(
    engine: DetachedEngine, torch_engine: Engine
) -> None:
    given = segment(TEXT[1], repetition_penalty=1.3)
    assert_same(run_segment(engine, *given), run_segment(torch_engine, *given))


def test_seed_decides_what_is_drawn(engine: DetachedEngine) -> None:
    def ids(seed: int) -> list[int]:
        drawn = segment(TEXT[0], temperature=1.0, seed=stream_key(seed, "thinker"))
        out: list[int] = run_segment(engine, *drawn).tensors("text")["ids"].tolist()
        return out

    assert ids(1) == ids(1)
    assert len({tuple(ids(seed)) for seed in range(4)}) > 1


def test_segment_leaves_and_others_go_on_when_it_is_released(
    engine: DetachedEngine, torch_engine: Engine
) -> None:
    leaving, staying = SegmentKey("leaves", 0), SegmentKey("stays", 0)
    for key, given in ((leaving, segment(TEXT[4])), (staying, segment(TEXT[0]))):
        engine.admit(key, given[0])
        engine.accept(key, given[1][0])
    output = {staying: SegmentOutput()}
    advance(engine, output | {leaving: SegmentOutput()}, steps=1)
    engine.release(leaving)
    # An event of a segment that was released would not find its output.
    advance(engine, output)
    assert_same(output[staying], run_segment(torch_engine, *segment(TEXT[0])))


def test_rows_and_ids_are_right_when_vllm_throws_requests_out(
    directory: Path, torch_engine: Engine
) -> None:
    """19 blocks of 32 positions, for ten segments that want 3 and more each."""
    engine = start(
        directory,
        512,
        metrics_listen="127.0.0.1:0",
        block_size=32,
        num_gpu_blocks_override=20,
    )
    try:
        segments = {SegmentKey("s", n): segment(each) for n, each in enumerate(EVERYTHING)}
        outputs = together(engine, segments)
        assert sum(_counted("vllm:num_preemptions_total")) > 0
    finally:
        engine.close()
    assert not _counted("vllm:num_preemptions_total")
    for key, ours in outputs.items():
        assert_same(ours, run_segment(torch_engine, *segment(EVERYTHING[key.segment])))


def test_death_fails_what_runs_and_the_engine_comes_back(tmp_path: Path) -> None:
    build_tiny_checkpoint(tmp_path / "endless", dataclasses.replace(OTHER, endless_text=True))
    others = _engine_processes()
    engine = start(tmp_path / "endless", 8192, **MEMORY)
    changes: queue.Queue[AntiphonError | None] = queue.Queue()
    try:
        before = run_segment(engine, *segment(AUDIO[0]))
        engine.watch(changes.put)
        key, output = SegmentKey("dies", 0), SegmentOutput()
        settings, (chunk,) = segment(TEXT[0], max_tokens=8000)
        engine.admit(key, settings)
        engine.accept(key, chunk)
        while not output.tensors("text"):
            advance(engine, {key: output}, steps=1)
        (process,) = _engine_processes() - others
        process.kill()
        advance(engine, {key: output})
        assert output.failed is not None
        assert output.failed.error.code is ErrorCode.UNAVAILABLE
        assert isinstance(changes.get(timeout=TIMEOUT_S), Unavailable)
        with pytest.raises(Unavailable, match="restarted"):
            engine.admit(SegmentKey("early", 0), settings)
        assert changes.get(timeout=TIMEOUT_S) is None
        assert_same(run_segment(engine, *segment(AUDIO[0])), before)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("engine_args", "words"),
    [
        ({"no_such_thing": 1}, "no argument no_such_thing"),
        ({"max_model_len": 12}, "context_limit"),
        ({"tensor_parallel_size": "many"}, "tensor_parallel_size"),
        ({"speculative_config": {"method": "eagle3"}}, "eagle3"),
        ({"max_logprobs": 19}, "max_logprobs must be at least 20"),
        ({"logprobs_mode": "processed_logprobs"}, "logprobs_mode"),
        ({"disable_log_stats": False}, "metrics_listen"),
    ],
)
def test_engine_arguments_are_refused_by_name(
    directory: Path, engine_args: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words) as raised:
        load(directory, StageConfig(engine="vllm", engine_args=engine_args))
    assert raised.value.field == "engine_args"


def test_device_is_refused_when_the_installed_vllm_has_another(directory: Path) -> None:
    with pytest.raises(InvalidArgument, match="device"):
        load(directory, StageConfig(engine="vllm", device="cuda"))


def test_checkpoint_is_refused_when_vllm_has_no_attention_for_its_heads(tmp_path: Path) -> None:
    build_tiny_checkpoint(tmp_path, TinyShape(head_dim=16))
    with pytest.raises(FailedPrecondition, match="head_dim is 16"):
        load(tmp_path, StageConfig(engine="vllm"))


def test_prompt_without_room_for_a_reply_is_refused_alone(engine: DetachedEngine) -> None:
    out = run_segment(engine, *segment(ask("word " * 2000)))
    assert out.failed is not None
    assert out.failed.error.code is ErrorCode.INVALID_ARGUMENT
    assert run_segment(engine, *segment(TEXT[0])).completed is not None


def _engine_processes() -> set[psutil.Process]:
    """Those that vLLM's engines of this process run in."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if "EngineCore" in child.name()}


def _counted(name: str) -> list[float]:
    """The series of one of vLLM's counters in this process."""
    samples = (each for metric in prometheus.REGISTRY.collect() for each in metric.samples)
    return [each.value for each in samples if each.name == name]


def test_stage_takes_what_its_arguments_leave(directory: Path, torch_engine: Engine) -> None:
    limits = {"audio": 0, "image": 1, "video": 0}
    config = StageConfig(
        engine="vllm",
        context_limit=1024,
        engine_args={"limit_mm_per_prompt": limits, "block_size": 32, **MEMORY},
    )
    stage = load(directory, config)
    assert isinstance(stage.engine, DetachedEngine)
    try:
        assert stage.facts.input_kinds == ("text", "image", "tools")
        assert (stage.facts.max_input_images, stage.facts.max_input_videos) == (1, 0)
        picture = png(64, 64)
        seen = run_segment(stage.engine, *segment(conversation(("user", [picture, "What?"]))))
        assert seen.failed is None, seen.failed
        for refused in (AUDIO[0], conversation(("user", [picture, "and", picture]))):
            out = run_segment(stage.engine, *segment(refused))
            assert out.failed is not None
            assert out.failed.error.code is ErrorCode.INVALID_ARGUMENT
            assert "limit_mm_per_prompt" in out.failed.error.message
        said = run_segment(stage.engine, *segment(TEXT[0]))
        assert_same(said, run_segment(torch_engine, *segment(TEXT[0])))
    finally:
        stage.engine.close()
