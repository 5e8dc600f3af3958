from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs

from antiphon.deployment.schema import StageConfig
from antiphon.errors import ErrorCode, InvalidArgument, NotImplementedYet
from antiphon.runtime.engine import Completed, Failed, InputChunk, LoadedStage
from antiphon.transport.device_edge import NoStream, Staging, ToHost
from antiphon.values.conversation import Conversation
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_omni.thinker.load import DEFAULT_SAMPLING, load
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment, run_segments
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import (
    AUDIO,
    SPEECH,
    TEXT,
    TURNS,
    ask,
    conversation,
    say,
    segment,
)

TEXT_ONLY = frozenset({"text"})
KEY = SegmentKey("engine test", 0)


def _text(output: SegmentOutput) -> str:
    return output.tensors("text")["utf8"].tobytes().decode()


def test_prompt_ids_come_alone_in_the_first_step(small_stage: LoadedStage) -> None:
    engine = small_stage.engine
    settings, [chunk] = segment(AUDIO[0])
    engine.admit(KEY, settings)
    engine.accept(KEY, chunk)
    [first] = engine.step()
    assert (first.edge, first.position, first.finish_reason) == ("prompt", 0, None)
    assert set(first.tensors) == {"ids"}
    rows, *sampled = engine.step()
    assert (rows.edge, rows.finish_reason) == ("prompt", FinishReason.STOP)
    assert [each.edge for each in sampled] == ["text", "tokens"]
    engine.release(KEY)


def test_rows_are_the_same_when_they_are_staged(
    small_dir: Path, small_stage: LoadedStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = Staging(1 << 20, pinned=False)
    monkeypatch.setattr(ToHost, "of", lambda config: ToHost(NoStream(), staging))
    staged = run_segment(load(small_dir, StageConfig()).engine, *segment(AUDIO[0]))
    direct = run_segment(small_stage.engine, *segment(AUDIO[0]))
    rows = [each.tensors["rows"] for each in staged.emitted if "rows" in each.tensors]
    np.testing.assert_array_equal(rows[0], direct.tensors("prompt")["rows"])
    assert staging.used == 1
    del rows, staged
    assert staging.used == 0


def test_prompt_finishes_at_once_when_no_rows_are_needed(small_stage: LoadedStage) -> None:
    out = run_segment(small_stage.engine, *segment(TEXT[0]))
    assert out.emitted[0].edge == "prompt"
    assert out.emitted[0].finish_reason == FinishReason.STOP
    assert "rows" not in out.tensors("prompt")


def test_prompt_has_no_rows_when_only_the_system_speaks_audio(small_stage: LoadedStage) -> None:
    spoken_to = conversation(say(0.5, role="system"), say("Hello"))
    prompt = run_segment(small_stage.engine, *segment(spoken_to)).tensors("prompt")
    assert set(prompt) == {"ids"}


def test_segment_makes_text_alone_when_nothing_is_spoken(small_stage: LoadedStage) -> None:
    spoken = run_segment(small_stage.engine, *segment(AUDIO[1]))
    silent = run_segment(small_stage.engine, *segment(AUDIO[1], outputs=TEXT_ONLY))
    assert {each.edge for each in silent.emitted} == {"text"}
    assert _text(silent) == _text(spoken)


def test_segment_whose_text_is_to_keep_to_a_schema_is_refused(small_stage: LoadedStage) -> None:
    assert not small_stage.facts.constrains_text
    settings, _ = segment(TEXT[0], json_schema='{"type": "object"}')
    with pytest.raises(NotImplementedYet, match="engine: vllm") as refused:
        small_stage.engine.admit(KEY, settings)
    assert refused.value.field == "json_schema"


@pytest.mark.parametrize("schema", ["", "{", "[]", '"object"', "[" * 9999, "9" * 9999, "\ud800"])
def test_schema_that_is_no_json_object_is_no_sampling(schema: str) -> None:
    with pytest.raises(InvalidArgument, match="json_schema: "):
        SamplingRequest(json_schema=schema)


def test_positions_count_ids_on_every_edge(small_stage: LoadedStage) -> None:
    out = run_segment(small_stage.engine, *segment(TURNS[0]))
    for edge in ("text", "tokens"):
        pieces = [each for each in out.emitted if each.edge == edge]
        lengths = [len(each.tensors.get("ids", ())) for each in pieces]
        assert [each.position for each in pieces] == [0, *np.cumsum(lengths)[:-1]]
    assert [each.edge for each in out.emitted if each.finish_reason][-2:] == ["text", "tokens"]


def test_limit_is_what_the_context_leaves_when_max_tokens_is_larger(small_dir: Path) -> None:
    length = len(run_segment(load(small_dir, StageConfig()).engine, *segment(ask("你好")))
                 .tensors("prompt")["ids"])  # fmt: skip
    stage = load(small_dir, StageConfig(context_limit=length + 3))
    out = run_segment(stage.engine, *segment(ask("你好")))
    assert out.completed is not None
    assert out.completed.output_positions == 3
    assert out.finish_reason("text") == FinishReason.LENGTH
    assert len(out.tensors("tokens")["ids"]) == 2


def test_tokens_finish_without_ids_when_the_reply_has_one(small_stage: LoadedStage) -> None:
    out = run_segment(small_stage.engine, *segment(TEXT[0], max_tokens=1))
    assert out.tensors("tokens") == {}
    assert out.finish_reason("tokens") == FinishReason.LENGTH
    assert len(out.tensors("text")["ids"]) == 1


def test_reply_ends_before_a_stop_string_that_spans_ids(small_stage: LoadedStage) -> None:
    whole = run_segment(small_stage.engine, *segment(TEXT[3]))
    pieces = [each.tensors["utf8"].tobytes().decode() for each in whole.emitted
              if each.edge == "text"]  # fmt: skip
    at = next(at for at in range(1, len(pieces) - 2) if all(pieces[at : at + 3]))
    stop = pieces[at][-1] + pieces[at + 1] + pieces[at + 2][0]
    start = _text(whole).find(stop)
    ends = np.cumsum([len(each) for each in pieces])

    out = run_segment(small_stage.engine, *segment(TEXT[3], stop=(stop,)))
    assert _text(out) == _text(whole)[:start]
    assert out.finish_reason("text") == out.finish_reason("tokens") == FinishReason.STOP
    ids = whole.tensors("text")["ids"]
    assert out.tensors("tokens")["ids"].tolist() == ids[: int((ends <= start).sum())].tolist()
    assert out.completed is not None
    assert out.completed.output_positions == len(out.tensors("text")["ids"])


def test_drawn_ids_do_not_depend_on_neighbours(small_stage: LoadedStage) -> None:
    drawn = {"temperature": 1.0, "top_k": 50, "seed": 7}
    alone = run_segment(small_stage.engine, *segment(TEXT[0], **drawn))
    segments = {SegmentKey("s", n): segment(TEXT[n], **drawn) for n in range(3)}
    together = run_segments(small_stage.engine, segments)[SegmentKey("s", 0)]
    assert together.tensors("text")["ids"].tolist() == alone.tensors("text")["ids"].tolist()
    other = run_segment(small_stage.engine, *segment(TEXT[0], **{**drawn, "seed": 8}))
    assert other.tensors("text")["ids"].tolist() != alone.tensors("text")["ids"].tolist()


@pytest.mark.parametrize(
    ("spoken_to", "outputs", "field"),
    [
        (Conversation(()), TEXT_ONLY, "messages"),
        (conversation(say("only", role="system")), SPEECH, "messages"),
        (conversation(say(0.001)), TEXT_ONLY, "audio.0"),
        (ask("water " * 33000), TEXT_ONLY, "messages"),
    ],
)
def test_segment_fails_alone_when_its_input_is_bad(
    small_stage: LoadedStage, spoken_to: Conversation, outputs: frozenset[str], field: str
) -> None:
    good, bad = SegmentKey("good", 0), SegmentKey("bad", 0)
    ended = run_segments(
        small_stage.engine,
        {bad: segment(spoken_to, outputs=outputs), good: segment(TEXT[0], max_tokens=4)},
    )
    failed = ended[bad].failed
    assert failed is not None
    assert (failed.error.code, failed.error.field) == (ErrorCode.INVALID_ARGUMENT, field)
    assert ended[good].completed is not None


def test_segment_fails_when_the_conversation_is_missing(small_stage: LoadedStage) -> None:
    settings, _ = segment(TEXT[0])
    out = run_segment(small_stage.engine, settings, [InputChunk("input", 0, {}, True)])
    assert out.failed is not None
    assert out.failed.error.field == "messages"


def test_segment_fails_alone_and_is_logged_when_a_step_faults(
    small_stage: LoadedStage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = small_stage.engine
    settings, [chunk] = segment(TEXT[0])
    bad = structs.replace(chunk, tensors={"messages": SimpleNamespace(nbytes=3)})  # type: ignore[dict-item]
    with caplog.at_level(logging.ERROR):
        out = run_segments(
            engine, {KEY: (settings, [bad]), SegmentKey("good", 0): (settings, [chunk])}
        )
    failed = out[KEY].failed
    assert failed is not None
    assert failed.error.code is ErrorCode.INTERNAL
    assert "AttributeError" in failed.error.message
    assert "Traceback" in caplog.text
    assert out[SegmentKey("good", 0)].completed is not None


def test_accept_raises_when_the_chunk_is_unusable(small_stage: LoadedStage) -> None:
    engine = small_stage.engine
    settings, [chunk] = segment(TEXT[0])
    engine.admit(KEY, settings)
    with pytest.raises(InvalidArgument, match="no input edge"):
        engine.accept(KEY, structs.replace(chunk, edge="codes"))
    engine.accept(KEY, structs.replace(chunk, segment_finished=False))
    with pytest.raises(InvalidArgument, match="a single chunk"):
        engine.accept(KEY, chunk)
    engine.release(KEY)


def test_segment_waits_for_input_until_it_is_finished(small_stage: LoadedStage) -> None:
    engine = small_stage.engine
    settings, [chunk] = segment(TEXT[0], max_tokens=3)
    engine.admit(KEY, settings)
    assert engine.awaited_edge(KEY) == "input"
    engine.accept(KEY, structs.replace(chunk, segment_finished=False))
    assert engine.awaited_edge(KEY) == "input"
    assert engine.step() == []
    engine.accept(KEY, InputChunk("input", 1, {}, segment_finished=True))
    assert engine.awaited_edge(KEY) is None
    outputs = {KEY: SegmentOutput()}
    advance(engine, outputs)
    assert outputs[KEY].completed is not None


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_release_frees_the_segment_when_it_is_midway(small_stage: LoadedStage, steps: int) -> None:
    engine = small_stage.engine
    settings, [chunk] = segment(AUDIO[0])
    neighbour = SegmentKey("neighbour", 0)
    engine.admit(KEY, settings)
    engine.accept(KEY, chunk)
    other_settings, [other_chunk] = segment(TEXT[2])
    engine.admit(neighbour, other_settings)
    engine.accept(neighbour, other_chunk)
    outputs = {neighbour: SegmentOutput()}
    for _ in range(steps):
        outputs[neighbour].emitted += [
            each for each in engine.step()
            if each.key == neighbour and not isinstance(each, Completed | Failed)
        ]  # fmt: skip
    engine.release(KEY)
    advance(engine, outputs)
    alone = run_segment(engine, *segment(TEXT[2]))
    assert _text(outputs[neighbour]) == _text(alone)
    with pytest.raises(KeyError):
        engine.awaited_edge(KEY)


def test_facts_describe_the_checkpoint(small_dir: Path, small_stage: LoadedStage) -> None:
    facts = small_stage.facts
    assert facts.model == small_dir.name
    assert facts.engine == "torch"
    assert facts.input_kinds == ("text", "audio", "tools")
    assert facts.input_sample_rate_hz == 16000
    assert facts.context_limit == 32768
    assert facts.max_input_audio_s == 1800.0
    assert facts.default_sampling == DEFAULT_SAMPLING
    assert facts.default_sampling.greedy


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (StageConfig(engine="abacus"), "engine"),
        (StageConfig(context_limit=40000), "context_limit"),
    ],
)
def test_load_raises_when_the_configuration_is_wrong(
    small_dir: Path, config: StageConfig, field: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        load(small_dir, config)
    assert raised.value.field == field
