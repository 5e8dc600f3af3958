"""Qwen2.5-Omni's thinker on torch answers as Hugging Face's, and its talker gets the same rows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import ErrorCode
from antiphon.pipelines.qwen2_5_omni import PROMPT, TOKENS
from antiphon.values.conversation import Conversation
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon.wire.logprobs import logprobs_from_tensors
from antiphon_services.lm.graphs import Eager, RowFunction
from antiphon_services.qwen2_5_omni.thinker.load import load, load_intake
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_services.thinker.patches import PatchMaker, VisualPatches
from antiphon_services.thinker.vision import Visual
from antiphon_testkit.conversations import conversation, live_chunks
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment
from antiphon_testkit.margins import LOGPROB_TOLERANCE
from antiphon_testkit.qwen2_5_omni.reference import Omni25Reference
from tests.unit.services.changed_tensor import with_changed_tensor
from tests.unit.services.qwen2_5_omni.thinker.omni25_thinker_lab import (
    CONVERSATIONS,
    MAX_TOKENS,
    SMALL,
    TEXT,
    Answer,
    answer,
    assert_equal,
    assert_near,
    ids_of,
    logits_of,
    png,
    recording,
    rows_of,
    segment,
)

TEXT_ONLY = frozenset({TEXT})


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_ids_text_and_rows_equal_generate(
    engine: ThinkerEngine, reference: Omni25Reference, answers: dict[str, Answer], name: str
) -> None:
    wanted = answers[name]
    out = run_segment(engine, *segment(wanted.asked))
    assert_equal(out, wanted)
    text = reference.tokenizer.decode(wanted.truth.text_ids, skip_special_tokens=True)
    assert out.tensors(TEXT)["utf8"].tobytes().decode() == text
    for edge in (TEXT, TOKENS):
        assert out.finish_reason(edge) == wanted.truth.text_finish
    assert out.finish_reason(PROMPT) == FinishReason.STOP


def test_replies_end_by_themselves_and_by_their_limit(answers: dict[str, Answer]) -> None:
    """Or the test above would show only half."""
    assert {each.truth.text_finish for each in answers.values()} == {
        FinishReason.STOP,
        FinishReason.LENGTH,
    }


def test_grids_come_with_the_ids_and_rows_later(engine: ThinkerEngine) -> None:
    asked, _ = CONVERSATIONS["images"]
    out = run_segment(engine, *segment(asked))
    first, *later = [each for each in out.emitted if each.edge == PROMPT]
    assert first.tensors["grids"].tolist() == [[1, 3, 6], [1, 2, 2], [1, 5, 2], [1, 2, 2]]
    assert set(first.tensors) == {"ids", "grids", "steps"}
    assert {name for each in later for name in each.tensors} == {"rows"}
    assert out.completed is not None
    assert out.completed.input_image_positions == 18 + 4 + 10 + 4


@pytest.mark.parametrize("prefill_rows", [1, 7])
def test_answers_are_the_same_when_prompts_are_prefilled_in_parts(
    omni25_directory: Path, answers: dict[str, Answer], prefill_rows: int
) -> None:
    engine = load(omni25_directory, StageConfig(slots=2), prefill_rows=prefill_rows).engine
    assert isinstance(engine, ThinkerEngine)
    for name in ("all", "images"):
        engine.forget()
        out = run_segment(engine, *segment(answers[name].asked))
        assert_equal(out, answers[name])
        sizes = [len(each.tensors["rows"]) for each in out.emitted
                 if each.edge == PROMPT and "rows" in each.tensors]  # fmt: skip
        assert max(sizes) == prefill_rows
        assert len(sizes) > 10


def test_eight_in_company_draw_what_each_draws_alone(engine: ThinkerEngine) -> None:
    drawn = [
        segment(asked, temperature=1.0, top_k=50, seed=seed)
        for seed, (asked, _) in enumerate(CONVERSATIONS.values())
    ]
    alone = [run_segment(engine, *each) for each in drawn]
    engine.forget()
    together = {SegmentKey("together", at): SegmentOutput() for at in range(len(drawn))}
    for key, (settings, (chunk,)) in zip(together, drawn, strict=True):
        engine.admit(key, settings)
        engine.accept(key, chunk)
    advance(engine, together)
    assert len(together) == 8
    for out, wanted in zip(together.values(), alone, strict=True):
        assert ids_of(out) == ids_of(wanted)
        for edge in (PROMPT, TOKENS):
            assert_near(rows_of(out, edge), rows_of(wanted, edge))
    seeds = [ids_of(run_segment(engine, *segment(CONVERSATIONS["text"][0], temperature=1.0,
                                                 seed=seed))) for seed in range(2)]  # fmt: skip
    assert seeds[0] != seeds[1]


def test_answers_are_the_same_when_steps_run_by_bucket(
    omni25_directory: Path, answers: dict[str, Answer]
) -> None:
    """Replies behind images go by other positions than those of their slots."""
    runs: list[int] = []

    def bucketing(
        function: RowFunction, buffers: Sequence[torch.Tensor], least: int
    ) -> RowFunction:
        def recorded(*rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
            runs.append(len(rows[0]))
            return function(*rows)

        return Eager(recorded, buffers, least)

    engine = load(omni25_directory, StageConfig(slots=8), bucketing).engine
    together = {SegmentKey("bucket", at): SegmentOutput() for at in range(len(answers))}
    for key, wanted in zip(together, answers.values(), strict=True):
        settings, (chunk,) = segment(wanted.asked)
        engine.admit(key, settings)
        engine.accept(key, chunk)
    runs.clear()
    advance(engine, together)
    for out, wanted in zip(together.values(), answers.values(), strict=True):
        assert_equal(out, wanted)
    assert max(runs) == 8


@pytest.mark.parametrize("steps", [0, 1, 2, 4, 9])
def test_others_go_on_when_one_is_cancelled(
    engine: ThinkerEngine, answers: dict[str, Answer], steps: int
) -> None:
    left, stays = SegmentKey("left", 0), SegmentKey("stays", 0)
    for key, name in ((left, "all"), (stays, "recordings")):
        settings, (chunk,) = segment(answers[name].asked)
        engine.admit(key, settings)
        engine.accept(key, chunk)
    out = SegmentOutput()
    for _ in range(steps):
        out.emitted += [each for each in engine.step() if each.key == stays]  # type: ignore[misc]
    engine.release(left)
    advance(engine, {stays: out})
    assert_equal(out, answers["recordings"])
    again = run_segment(engine, *segment(answers["all"].asked))
    assert ids_of(again) == answers["all"].truth.text_ids.tolist()


def test_rows_of_what_a_stop_string_cuts_off_do_not_leave(
    engine: ThinkerEngine, answers: dict[str, Answer]
) -> None:
    wanted = answers["text"]
    whole = run_segment(engine, *segment(wanted.asked))
    pieces = [each.tensors["utf8"].tobytes().decode() for each in whole.emitted
              if each.edge == TEXT]  # fmt: skip
    at = next(at for at in range(3, len(pieces) - 2) if all(pieces[at : at + 3]))
    stop = pieces[at][-1] + pieces[at + 1] + pieces[at + 2][0]
    start = "".join(pieces).find(stop)
    ends = np.cumsum([len(each) for each in pieces])
    out = run_segment(engine, *segment(wanted.asked, stop=(stop,)))
    assert out.tensors(TEXT)["utf8"].tobytes().decode() == "".join(pieces)[:start]
    kept = int((ends <= start).sum())
    assert 0 < kept < len(ids_of(out)) - 1
    assert_near(rows_of(out, TOKENS), wanted.reply_rows[:kept])
    assert out.finish_reason(TOKENS) == FinishReason.STOP


def test_reply_of_one_token_has_rows_of_its_prompt_alone(
    engine: ThinkerEngine, answers: dict[str, Answer]
) -> None:
    wanted = answers["recording"]
    out = run_segment(engine, *segment(wanted.asked, max_tokens=1))
    assert ids_of(out) == wanted.truth.text_ids[:1].tolist()
    assert_near(rows_of(out, PROMPT), wanted.prompt_rows)
    assert out.tensors(TOKENS) == {}
    assert out.finish_reason(TOKENS) == FinishReason.LENGTH


def test_nothing_is_said_when_the_first_draw_is_the_stop_id(
    omni25_directory: Path,
    reference: Omni25Reference,
    answers: dict[str, Answer],
    tmp_path: Path,
) -> None:
    wanted = answers["text"]
    first = int(wanted.truth.text_ids[0])

    def stop_instead(head: torch.Tensor) -> None:
        # What wins with a logit above zero loses against twice as much.
        head[reference.stop_id] = 2 * head[first]

    changed = with_changed_tensor(
        omni25_directory, tmp_path / "changed", "thinker.lm_head.weight", stop_instead
    )
    engine = load(changed, StageConfig(slots=1)).engine
    out = run_segment(engine, *segment(wanted.asked))
    assert ids_of(out) == [reference.stop_id]
    assert out.tensors(TEXT)["utf8"].tobytes() == b""
    assert out.tensors(TOKENS) == {}
    assert out.finish_reason(TOKENS) == out.finish_reason(TEXT) == FinishReason.STOP
    assert_near(rows_of(out, PROMPT), wanted.prompt_rows)


def test_reply_ends_where_the_context_does(
    omni25_directory: Path, answers: dict[str, Answer]
) -> None:
    wanted = answers["image"]
    limit = len(wanted.truth.prompt_ids) + 5
    engine = load(omni25_directory, StageConfig(slots=1, context_limit=limit)).engine
    out = run_segment(engine, *segment(wanted.asked))
    assert ids_of(out) == wanted.truth.text_ids[:5].tolist()
    assert_near(rows_of(out, TOKENS), wanted.reply_rows[:4])
    assert out.finish_reason(TOKENS) == FinishReason.LENGTH


def test_log_probabilities_equal_the_references(
    engine: ThinkerEngine, reference: Omni25Reference, answers: dict[str, Answer]
) -> None:
    wanted = answers["recordings"]
    logits = logits_of(reference, wanted.asked, MAX_TOKENS)
    out = run_segment(engine, *segment(wanted.asked, top_logprobs=3))
    assert ids_of(out) == wanted.truth.text_ids.tolist()
    told = [one for each in out.emitted if each.edge == TEXT
            for one in logprobs_from_tensors(each.tensors)]  # fmt: skip
    logprobs = logits.log_softmax(-1)
    close = LOGPROB_TOLERANCE * float(logits.abs().max())
    at = 0
    for one in told:
        while int(wanted.truth.text_ids[at]) != one.token_id:
            at += 1
        everything = (one, *one.top)
        theirs = [float(logprobs[at, each.token_id]) for each in everything]
        np.testing.assert_allclose([e.logprob for e in everything], theirs, rtol=0, atol=close)
        assert len(one.top) == 3
        at += 1
    assert len(told) > MAX_TOKENS // 2


def test_recording_is_refused_when_the_reference_would_cut_it_off(engine: ThinkerEngine) -> None:
    asked = conversation(("user", [recording(1.0), recording(300.1)]))
    failed = run_segment(engine, *segment(asked, outputs=TEXT_ONLY)).failed
    assert failed is not None
    assert (failed.error.code, failed.error.field) == (ErrorCode.INVALID_ARGUMENT, "audio.1")


def test_images_are_decoded_where_large_inputs_are_prepared(
    engine: ThinkerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of their files, or small prompts would wait for them."""
    cut, threads = PatchMaker.__call__, []

    def noted(maker: PatchMaker, visual: Visual) -> VisualPatches:
        threads.append(threading.current_thread().name)
        return cut(maker, visual)

    monkeypatch.setattr(PatchMaker, "__call__", noted)
    run_segment(engine, *segment(CONVERSATIONS["image"][0], max_tokens=1))
    assert threads == ["prepare media"]


def test_broken_image_fails_its_segment_alone(
    engine: ThinkerEngine, answers: dict[str, Answer]
) -> None:
    file = png(SMALL)
    broken = run_segment(engine, *segment(conversation(("user", file[: len(file) // 2]))))
    assert broken.failed is not None
    assert broken.failed.error.field == "image.0"
    assert_equal(run_segment(engine, *segment(answers["text"].asked)), answers["text"])


def test_facts_say_what_the_engine_takes(omni25_directory: Path) -> None:
    facts = load(omni25_directory, StageConfig(slots=1)).facts
    assert facts.engine == "torch"
    assert facts.input_kinds[:3] == ("text", "audio", "image")
    assert facts.max_input_audio_s == 300.0
    assert facts.context_limit == 32768
    assert facts.default_sampling.greedy
    assert facts.default_sampling.max_tokens == 1024


def test_features_equal_the_processors(omni25_directory: Path, reference: Omni25Reference) -> None:
    """Which pads each recording to five minutes, one that is silent at its end among them."""
    quiet = np.concatenate((recording(0.5, 7), np.zeros(5000, np.float32)))
    heard = (recording(1.3), recording(2.0, 1), quiet, np.zeros(1000, np.float32))
    front_end = load_intake(omni25_directory, StageConfig()).prompts.audio
    features = front_end.extract(heard)
    assert features is not None
    asked: Conversation = conversation(("user", list(heard)))
    wanted = reference.inputs(asked)
    mask = wanted["feature_attention_mask"].numpy()
    assert features.mask.sum(-1).tolist() == mask.sum(-1).tolist()
    assert front_end.positions(heard) == features.positions
    theirs = np.concatenate(
        [
            each[:, :frames]
            for each, frames in zip(wanted["input_features"].numpy(), mask.sum(-1), strict=True)
        ],
        axis=1,
    )
    np.testing.assert_allclose(features.features, theirs, rtol=0, atol=1e-6)
    assert answer(reference, asked, max_tokens=4).truth.prompt_ids.size


@pytest.mark.parametrize("size", [320, 16000, 1_000_000])
def test_recording_that_is_heard_while_it_is_made_is_answered_like_the_whole(
    engine: ThinkerEngine, reference: Omni25Reference, size: int
) -> None:
    spoken = recording(7.3, 8) * np.linspace(0.05, 1, round(7.3 * 16000), dtype=np.float32)
    asked: Conversation = conversation(
        ("user", recording(2.6, 9)), ("assistant", "Yes"), ("user", spoken)
    )
    settings, _ = segment(asked)
    out = run_segment(engine, replace(settings, live=True), live_chunks(asked, [size]))
    assert_equal(out, answer(reference, asked))


def test_talker_that_reads_every_row_gets_none_of_a_prompt_that_grows(
    engine: ThinkerEngine,
) -> None:
    asked: Conversation = conversation(("user", recording(7.3, 8)))
    settings, _ = segment(asked)
    key = SegmentKey("spoken", 0)
    engine.admit(key, replace(settings, live=True))
    heard = {key: SegmentOutput()}
    *pieces, end = live_chunks(asked, [16000])
    for piece in pieces:
        engine.accept(key, piece)
        advance(engine, heard)
    # Three windows of two seconds were computed, and nothing has left.
    assert engine.so_far(key).input_positions >= 150
    assert heard[key].emitted == []
    engine.accept(key, end)
    advance(engine, heard)
    assert heard[key].finish_reason(PROMPT) == FinishReason.STOP
    assert heard[key].completed is not None


def test_recording_beside_an_image_is_taken_when_it_is_whole(
    engine: ThinkerEngine, reference: Omni25Reference
) -> None:
    asked: Conversation = conversation(("user", [png(SMALL), recording(2.6, 9)]))
    settings, _ = segment(asked)
    out = run_segment(engine, replace(settings, live=True), live_chunks(asked, [16000]))
    assert_equal(out, answer(reference, asked, (SMALL,)))
