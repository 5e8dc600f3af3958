import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from antiphon.errors import DataLoss, InvalidArgument, NotImplementedYet, ResourceExhausted
from antiphon.pipelines.qwen2_5_omni import CODES, PROMPT, TOKENS
from antiphon.runtime.engine import Emitted, InputChunk
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment, run_segments
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from tests.unit.services.qwen2_5_omni.talker.codec_talker_lab import (
    GREEDY,
    SAMPLED,
    Lab,
    Question,
    pieces,
    settings,
    truth_codes,
)

PROMPTS = ("Tell me about water.", "Count the days", "find the number")
LONG = "find the number of days " * 40


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def launch_ahead(request: pytest.FixtureRequest) -> bool:
    ahead: bool = request.param
    return ahead


def asked(lab: Lab, prompt: str = PROMPTS[1], **given: object) -> Question:
    return lab.ask(conversation(("user", prompt)), **given)


def codes_of(output: SegmentOutput) -> list[int]:
    assert output.failed is None
    assert output.completed is not None
    found = output.tensors(CODES)
    if not found:
        return []
    assert found["codes"].dtype == np.uint16
    assert found["codes"].shape[1] == 1
    emitted = [each for each in output.emitted if each.tensors]
    assert [each.position for each in emitted] == list(range(len(emitted)))
    flat: list[int] = found["codes"][:, 0].tolist()
    return flat


@pytest.mark.parametrize("voice", ["Chelsie", "Ethan"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_codes_equal_the_reference_when_greedy(lab: Lab, prompt: str, voice: str) -> None:
    question = asked(lab, prompt, voice=voice)
    output = run_segment(lab.engine(), settings(voice), question.chunks())
    assert codes_of(output) == question.truth.codes.tolist()
    ended = len(question.truth.drawn) > len(question.truth.codes)
    expected = FinishReason.STOP if ended else FinishReason.LENGTH
    assert output.finish_reason(CODES) is expected
    assert output.completed is not None
    assert output.completed.finish_reason is expected
    assert output.completed.output_positions == len(question.truth.codes)


@pytest.mark.parametrize("sizes", [(1000,), (1,), (127, 2), (129,)], ids=str)
def test_codes_equal_the_reference_when_the_prompt_is_long(lab: Lab, sizes: Sequence[int]) -> None:
    question = asked(lab, LONG, talker_max_tokens=30)
    assert len(question.prompt) > 256
    sampling = replace(GREEDY, max_tokens=30)
    output = run_segment(lab.engine(), settings(sampling=sampling), question.chunks(sizes))
    assert codes_of(output) == question.truth.codes.tolist()


def test_codes_equal_the_reference_when_the_reply_is_cut(lab: Lab) -> None:
    question = asked(lab, thinker_max_tokens=4, talker_max_tokens=40)
    assert question.truth.text_finish is FinishReason.LENGTH
    assert len(question.reply) == 3
    sampling = replace(GREEDY, max_tokens=40)
    output = run_segment(lab.engine(), settings(sampling=sampling), question.chunks((1,)))
    assert codes_of(output) == question.truth.codes.tolist()


def test_codes_equal_the_reference_when_the_user_speaks(lab: Lab) -> None:
    sound = np.random.default_rng(0).normal(0, 0.1, 24_000).astype(np.float32)
    question = lab.ask(conversation(("user", [sound, "Hello"])))
    output = run_segment(lab.engine(), settings(), question.chunks((50,)))
    assert codes_of(output) == question.truth.codes.tolist()


def test_codes_equal_the_reference_when_the_user_shows_images(lab: Lab) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (112, 168, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    question = lab.ask(
        conversation(("user", ["Hello", file.getvalue(), "What is the weather"])), images=(pixels,)
    )
    assert question.grids.prod() > question.grids.max() > 1
    output = run_segment(lab.engine(), settings(), question.chunks((5, 30)))
    assert codes_of(output) == question.truth.codes.tolist()
    # The positions matter: with those of rows, as words have them, other codes come.
    words = replace(question, ids=np.zeros_like(question.ids), grids=question.grids[:0])
    plain = run_segment(lab.engine(), settings(), words.chunks())
    assert codes_of(plain) != question.truth.codes.tolist()


@pytest.mark.parametrize("penalty", [0.5, 1.0, 2.0])
def test_penalty_covers_mask_pad_start_and_what_was_drawn(own_lab: Lab, penalty: float) -> None:
    """Control ids that the reference's prompt holds are made likely, so that whether they are
    penalised decides what is drawn."""
    ids = own_lab.ids
    with torch.no_grad():
        for control, like in ((ids.codec_mask, 3), (ids.codec_pad, 11)):
            own_lab.head[control] = own_lab.head[like] * 1.05
    question = asked(own_lab, talker_repetition_penalty=penalty)
    sampling = replace(GREEDY, repetition_penalty=penalty)
    output = run_segment(own_lab.engine(), settings(sampling=sampling), question.chunks())
    assert codes_of(output) == own_lab.codes(question.truth)


def test_start_id_is_never_drawn_when_it_is_the_likeliest(own_lab: Lab) -> None:
    with torch.no_grad():
        own_lab.head[own_lab.ids.codec_bos] = own_lab.head.sum(0) * 3
    question = asked(own_lab)
    output = run_segment(own_lab.engine(), settings(), question.chunks())
    assert codes_of(output) == own_lab.codes(question.truth)
    assert own_lab.ids.codec_bos not in question.truth.drawn


@pytest.mark.parametrize("end", ["codec_pad", "codec_end"])
def test_speech_is_empty_when_the_first_draw_ends_it(own_lab: Lab, end: str) -> None:
    question = asked(own_lab)
    with torch.no_grad():
        first = int(question.truth.drawn[0])
        own_lab.head[getattr(own_lab.ids, end)] = own_lab.head[first] * 10
    output = run_segment(own_lab.engine(), settings(), question.chunks())
    assert codes_of(output) == []
    assert output.finish_reason(CODES) is FinishReason.STOP


def test_pad_ends_speech_as_the_end_does(tmp_path: Path) -> None:
    build_tiny_checkpoint(tmp_path / "pad", TinyOmni25Shape(pad_ends=True))
    own = Lab(tmp_path / "pad")
    with torch.no_grad():
        own.head[own.ids.codec_end] = 0.0
    ended = 0
    for prompt in PROMPTS:
        question = asked(own, prompt, talker_max_tokens=150)
        sampling = replace(GREEDY, max_tokens=150)
        output = run_segment(own.engine(), settings(sampling=sampling), question.chunks())
        assert codes_of(output) == question.truth.codes.tolist()
        if output.finish_reason(CODES) is FinishReason.STOP:
            assert question.truth.drawn[-1] == own.ids.codec_pad
            ended += 1
    assert ended


def test_ids_without_decoder_row_never_leave_when_drawn(tmp_path: Path) -> None:
    build_tiny_checkpoint(tmp_path / "stray", TinyOmni25Shape(stray_codes=True))
    own = Lab(tmp_path / "stray")
    question = asked(own)
    every, left = truth_codes(question.truth, own.ids), own.codes(question.truth)
    assert len(left) < len(every)
    output = run_segment(own.engine(), settings(), question.chunks())
    assert codes_of(output) == left


def test_speech_is_empty_when_the_reply_has_one_token(lab: Lab) -> None:
    question = asked(lab)
    chunks = question.prompt_chunks()
    end = InputChunk(TOKENS, 0, {}, segment_finished=True)
    output = run_segment(lab.engine(), settings(), [*chunks, end])
    assert codes_of(output) == []
    assert output.finish_reason(CODES) is FinishReason.STOP


def test_segment_waits_for_rows_and_speaks_no_padding_meanwhile(lab: Lab) -> None:
    question = asked(lab)
    engine, key, output = lab.engine(), SegmentKey("late", 0), SegmentOutput()
    engine.admit(key, settings())
    assert engine.awaited_edge(key) == PROMPT
    for chunk in question.prompt_chunks():
        engine.accept(key, chunk)
        advance(engine, {key: output})
    assert engine.awaited_edge(key) == TOKENS
    for step in range(5):
        row = question.reply[step : step + 1]
        engine.accept(key, InputChunk(TOKENS, step, {"rows": row}))
        advance(engine, {key: output})
        assert engine.awaited_edge(key) == TOKENS
        found = output.tensors(CODES)["codes"][:, 0].tolist()
        assert found == question.truth.codes[: step + 1].tolist()


def test_held_segment_costs_nothing_and_goes_on_later(lab: Lab) -> None:
    question = asked(lab)
    engine, key, output = lab.engine(), SegmentKey("held", 0), SegmentOutput()
    engine.admit(key, settings())
    for chunk in question.chunks():
        engine.accept(key, chunk)
    for _ in range(3):
        assert not engine.step({key})
    advance(engine, {key: output})
    assert codes_of(output) == question.truth.codes.tolist()


def test_codes_are_those_of_each_alone_when_eight_speak_together(lab: Lab) -> None:
    questions = [asked(lab, prompt) for prompt in PROMPTS]
    wanted = {
        SegmentKey(f"s{seed}", 0): (
            settings(("Chelsie", "Ethan")[seed % 2], replace(SAMPLED, seed=seed)),
            questions[seed % 3].chunks(((1,), (3,), (40, 1))[seed % 3]),
        )
        for seed in range(8)
    }
    together = run_segments(lab.engine(), wanted)
    found = {key: codes_of(output) for key, output in together.items()}
    for key, (setting, chunks) in wanted.items():
        assert codes_of(run_segment(lab.engine(), setting, chunks)) == found[key]
    assert len({tuple(each) for each in found.values()}) == 8


def test_speech_ends_where_the_context_does(lab: Lab) -> None:
    question = asked(lab)
    limit = len(question.prompt) + 1 + 10
    output = run_segment(lab.engine(context_limit=limit), settings(), question.chunks())
    assert codes_of(output) == question.truth.codes[:10].tolist()
    assert output.finish_reason(CODES) is FinishReason.LENGTH


def test_prompt_is_refused_when_it_is_longer_than_the_context(lab: Lab) -> None:
    question = asked(lab)
    engine, key = lab.engine(context_limit=len(question.prompt) + 1), SegmentKey("long", 0)
    engine.admit(key, settings())
    with pytest.raises(InvalidArgument, match="talker positions; the maximum is"):
        engine.accept(key, question.chunks()[0])


def test_segment_is_refused_when_all_slots_are_taken(lab: Lab) -> None:
    question, engine = asked(lab), lab.engine(slots=1)
    for name in ("first", "second", "third"):
        engine.admit(SegmentKey(name, 0), settings())
    engine.accept(SegmentKey("first", 0), question.chunks()[0])
    with pytest.raises(ResourceExhausted, match="slots"):
        engine.accept(SegmentKey("second", 0), question.chunks()[0])
    engine.release(SegmentKey("second", 0))
    engine.release(SegmentKey("first", 0))
    engine.accept(SegmentKey("third", 0), question.chunks()[0])


def test_voice_is_refused_when_unknown_and_the_default_when_none_is_asked_for(lab: Lab) -> None:
    engine = lab.engine()
    with pytest.raises(InvalidArgument, match=r"unknown voice 'Zoe'; use one of: chelsie, ethan"):
        engine.admit(SegmentKey("voice", 0), settings("Zoe"))
    question = asked(lab)
    output = run_segment(engine, settings(""), question.chunks())
    assert codes_of(output) == question.truth.codes.tolist()


def rows_of(
    count: int,
    *,
    edge: str = PROMPT,
    position: int = 0,
    width: int = 64,
    dtype: npt.DTypeLike = np.float32,
    segment_finished: bool = False,
) -> InputChunk:
    rows = np.zeros((count, width), dtype)
    return InputChunk(edge, position, {"rows": rows}, segment_finished=segment_finished)


@pytest.mark.parametrize(
    ("chunk", "error", "said"),
    [
        (rows_of(2, width=7), DataLoss, "floats"),
        (rows_of(2, dtype=np.int32), DataLoss, "floats"),
        (rows_of(2, position=5), DataLoss, "instead of 0"),
        (rows_of(3), DataLoss, "received 3 rows for 2 IDs"),
        (rows_of(1, segment_finished=True), DataLoss, "received 1 rows for 2 IDs"),
        (rows_of(2, edge="audio"), InvalidArgument, "no input 'audio'"),
        (rows_of(2, edge=TOKENS, position=1), DataLoss, "instead of 0"),
        (InputChunk(TOKENS, 0, {"ids": np.zeros(2, np.int32)}), DataLoss, "rows are missing"),
        (
            InputChunk(PROMPT, 0, {"ids": np.zeros(2, np.int32)}),
            DataLoss,
            "must be sent in the first chunk",
        ),
    ],
)
def test_chunk_is_refused_when_it_does_not_fit(
    lab: Lab, chunk: InputChunk, error: type[Exception], said: str
) -> None:
    engine, key = lab.engine(), SegmentKey("odd", 0)
    engine.admit(key, settings())
    engine.accept(key, InputChunk(PROMPT, 0, {"ids": np.zeros(2, np.int32)}))
    with pytest.raises(error, match=said):
        engine.accept(key, chunk)


@pytest.mark.parametrize(
    ("told", "error", "said"),
    [
        ({"ids": np.zeros(0, np.int32)}, DataLoss, "must be sent in the first chunk"),
        ({"ids": np.zeros(2, np.int64)}, DataLoss, "int32"),
        ({"ids": np.zeros(2, np.int32), "grids": np.ones((1, 3), np.int32)}, DataLoss, "steps"),
        ({"rows": np.zeros((2, 64), np.float32)}, DataLoss, "first chunk contains no IDs"),
        ({}, DataLoss, "first chunk contains no IDs"),
    ],
)
def test_prompt_is_refused_when_its_first_chunk_does_not_fit(
    lab: Lab, told: dict[str, npt.NDArray[Any]], error: type[Exception], said: str
) -> None:
    engine, key = lab.engine(), SegmentKey("odd", 0)
    engine.admit(key, settings())
    with pytest.raises(error, match=said):
        engine.accept(key, InputChunk(PROMPT, 0, told))


def test_prompt_is_refused_when_a_video_takes_more_time_than_positions(lab: Lab) -> None:
    told = {
        "ids": np.full(2, lab.placeholders.video, np.int32),
        "grids": np.array([[2, 1, 1]], np.int32),
        "steps": np.array([9], np.int32),
    }
    engine, key = lab.engine(), SegmentKey("odd", 0)
    engine.admit(key, settings())
    with pytest.raises(NotImplementedYet, match="more time steps than positions"):
        engine.accept(key, InputChunk(PROMPT, 0, told))


def test_only_its_own_segment_fails_when_logits_are_not_finite(lab: Lab) -> None:
    question = asked(lab)
    bad = question.prompt.copy()
    bad[-1] = np.nan
    engine = lab.engine(slots=2)
    wanted = {
        SegmentKey("bad", 0): (
            settings(),
            [*question.prompt_chunks(rows=bad), *pieces(TOKENS, bad, (1000,))],
        ),
        SegmentKey("good", 0): (settings(), question.chunks()),
    }
    outputs = run_segments(engine, wanted)
    assert outputs[SegmentKey("bad", 0)].failed is not None
    assert codes_of(outputs[SegmentKey("good", 0)]) == question.truth.codes.tolist()
    # Whoever has the slot next finds nothing of it.
    again = run_segment(engine, settings(), question.chunks(), SegmentKey("next", 0))
    assert codes_of(again) == question.truth.codes.tolist()
    assert all(isinstance(each, Emitted) for each in again.emitted)
