"""Texts of several utterances, whole and in pieces: the talker's engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.errors import InvalidArgument
from antiphon.pipelines.edges import PIECE
from antiphon.pipelines.ming_tts import INPUT, LATENTS
from antiphon.runtime.engine import InputChunk
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.ming_tts.talker.utterances import ArrivingText, split_text
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segments
from tests.equality.ming_tts.flash_cases import LONG, NAMES
from tests.unit.services.ming_tts.ming_talker_lab import Asked, TalkerLab, latents_of, message

TOLERANCE = 1e-4
ENGLISH, CHINESE = LONG["english"], LONG["chinese"]
SHORT = "One two three four five six. It costs 3.14 now, he said. Then they went home."
ASKED = Asked(CHINESE, seed=1, voice=NAMES[0])


@pytest.fixture(scope="module")
def lab(checkpoints: dict[str, Path]) -> TalkerLab:
    return TalkerLab(checkpoints["flash"])


def by_size(text: str, size: int) -> list[InputChunk]:
    """A text in pieces of so many bytes, the last of which ends it."""
    data = text.encode()
    parts = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    return [
        InputChunk(
            INPUT,
            number,
            {PIECE: np.frombuffer(part, np.uint8)},
            number + 1 == len(parts),
            FinishReason.STOP if number + 1 == len(parts) else None,
        )
        for number, part in enumerate(parts)
    ]


def say(lab: TalkerLab, *asked: tuple[Asked, Sequence[InputChunk]]) -> list[SegmentOutput]:
    """The answers to texts, each of which comes as these chunks."""
    keys = [SegmentKey("asked", index) for index in range(len(asked))]
    given: Any = {
        key: (lab.settings(each), list(chunks))
        for key, (each, chunks) in zip(keys, asked, strict=True)
    }
    outputs = run_segments(lab.engine, given)
    return [outputs[key] for key in keys]


def test_a_long_text_is_one_answer_of_all_its_utterances(lab: TalkerLab) -> None:
    (output,) = lab.speak(ASKED)
    frames = latents_of(output)
    texts = split_text(CHINESE)
    assert len(texts) == 2
    first = latents_of(lab.speak(replace(ASKED, text=texts[0]))[0])
    assert len(frames) > len(first)
    np.testing.assert_allclose(frames[: len(first)], first, rtol=0, atol=TOLERANCE)
    assert output.completed is not None
    alone = [lab.speak(replace(ASKED, text=text))[0].completed for text in texts]
    rows = [each.input_positions for each in alone if each]
    assert output.completed.input_positions == sum(rows)
    assert min(rows) > 100


def test_company_of_long_and_short_texts_changes_nothing(lab: TalkerLab) -> None:
    asked = [
        ASKED,
        Asked(ENGLISH, seed=2),
        Asked("a", seed=3),
        Asked(CHINESE, seed=4, changes={"temperature": 1.0}),
        Asked("word " * 130, seed=5, changes={"max_tokens": 40}),
        Asked(SHORT, seed=6),
        Asked(CHINESE, seed=7, options={"instruction": "Calm."}),
        Asked(ENGLISH, seed=8, voice=NAMES[1]),
    ]
    for each, output in zip(asked, lab.speak(*asked), strict=True):
        (alone,) = lab.speak(each)
        np.testing.assert_allclose(latents_of(output), latents_of(alone), rtol=0, atol=TOLERANCE)
        assert output.completed == replace(alone.completed, key=output.completed.key)  # type: ignore[type-var, union-attr]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_goes_on_from_any_frame_of_any_utterance(
    lab: TalkerLab, temperature: float
) -> None:
    asked = replace(ASKED, changes={"temperature": temperature})
    (whole,) = lab.speak(asked)
    frames = latents_of(whole)
    first = len(latents_of(lab.speak(replace(asked, text=split_text(CHINESE)[0]))[0]))
    for known in {1, first - 1, first, first + 1, first + 2, len(frames) - 1, len(frames)}:
        (output,) = lab.speak(replace(asked, known=frames[:known]))
        made = latents_of(output)
        assert made.shape == frames.shape, known
        np.testing.assert_array_equal(made[:known], frames[:known])
        np.testing.assert_allclose(made, frames, rtol=0, atol=TOLERANCE)
        assert output.completed is not None
        assert whole.completed is not None
        assert output.completed.finish_reason is whole.completed.finish_reason
        assert output.completed.input_positions == whole.completed.input_positions


def test_frames_of_more_than_the_text_are_refused(lab: TalkerLab) -> None:
    frames = latents_of(lab.speak(ASKED)[0])
    known = np.concatenate([frames] * 20)
    (output,) = lab.speak(replace(ASKED, known=known))
    assert output.failed is not None
    assert output.failed.error.field == "history.latents"


@pytest.mark.parametrize("most", [1, "first", "after", "all"])
def test_max_tokens_bounds_all_utterances(lab: TalkerLab, most: int | str) -> None:
    frames = latents_of(lab.speak(ASKED)[0])
    first = len(latents_of(lab.speak(replace(ASKED, text=split_text(CHINESE)[0]))[0]))
    count = {"first": first, "after": first + 1, "all": len(frames)}.get(str(most), 1)
    (cut,) = lab.speak(replace(ASKED, changes={"max_tokens": count}))
    np.testing.assert_allclose(latents_of(cut), frames[:count], rtol=0, atol=TOLERANCE)
    assert cut.completed is not None
    if count < len(frames):
        assert cut.completed.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("name", ["flash", "windowed"])
def test_pieces_say_the_same_however_they_are_cut(
    name: str, size: int, checkpoints: dict[str, Path]
) -> None:
    lab = TalkerLab(checkpoints[name])
    asked = Asked(SHORT, seed=3)
    (whole,) = say(lab, (asked, by_size(SHORT, 10_000)))
    (pieced,) = say(lab, (asked, by_size(SHORT, size)))
    np.testing.assert_allclose(latents_of(pieced), latents_of(whole), rtol=0, atol=TOLERANCE)
    first, *others = ArrivingText().take(SHORT.encode(), last=True)
    assert len(others) == 2
    alone = latents_of(lab.speak(replace(asked, text=first))[0])
    np.testing.assert_allclose(latents_of(whole)[: len(alone)], alone, rtol=0, atol=TOLERANCE)


def test_speech_begins_with_the_first_sentence_and_waits_for_the_next(lab: TalkerLab) -> None:
    key, asked = SegmentKey("pieces", 0), Asked(SHORT, seed=3)
    expected = latents_of(say(lab, (asked, by_size(SHORT, 10_000)))[0])
    lab.engine.admit(key, lab.settings(asked))
    *some, last = by_size(SHORT, 40)
    output = SegmentOutput()
    lab.engine.accept(key, some[0])
    advance(lab.engine, {key: output})
    assert lab.engine.awaited_edge(key) == INPUT
    assert output.emitted
    assert output.completed is None
    for chunk in [*some[1:], last]:
        lab.engine.accept(key, chunk)
    advance(lab.engine, {key: output})
    np.testing.assert_allclose(latents_of(output), expected, rtol=0, atol=TOLERANCE)


def test_pieces_that_come_while_others_are_prepared_are_spoken(lab: TalkerLab) -> None:
    key, asked = SegmentKey("pieces", 0), Asked(SHORT, seed=3)
    expected = latents_of(say(lab, (asked, by_size(SHORT, 10_000)))[0])
    lab.engine.admit(key, lab.settings(asked))
    for chunk in by_size(SHORT, 1):
        lab.engine.accept(key, chunk)
    output = SegmentOutput()
    advance(lab.engine, {key: output})
    np.testing.assert_allclose(latents_of(output), expected, rtol=0, atol=TOLERANCE)


def test_a_text_that_ends_behind_its_last_sentence_ends_the_answer(lab: TalkerLab) -> None:
    """The end comes by itself, once everything has been said."""
    key, asked = SegmentKey("pieces", 0), Asked(SHORT, seed=3)
    expected = latents_of(say(lab, (asked, by_size(SHORT, 10_000)))[0])
    lab.engine.admit(key, lab.settings(asked))
    output = SegmentOutput()
    text = np.frombuffer(f"{SHORT} ".encode(), np.uint8)
    lab.engine.accept(key, InputChunk(INPUT, 0, {PIECE: text}))
    advance(lab.engine, {key: output})
    assert lab.engine.awaited_edge(key) == INPUT
    assert output.completed is None
    lab.engine.accept(key, InputChunk(INPUT, 1, {}, True, FinishReason.STOP))
    advance(lab.engine, {key: output})
    np.testing.assert_allclose(latents_of(output), expected, rtol=0, atol=TOLERANCE)


def test_pieces_go_on_from_frames_that_a_client_has(lab: TalkerLab) -> None:
    asked = Asked(SHORT, seed=3)
    frames = latents_of(say(lab, (asked, by_size(SHORT, 5)))[0])
    for known in (1, len(frames) // 2, len(frames) - 1):
        again = replace(asked, known=frames[:known])
        made = latents_of(say(lab, (again, by_size(SHORT, 11)))[0])
        np.testing.assert_allclose(made, frames, rtol=0, atol=TOLERANCE)


def test_slots_come_back_from_the_middle_of_a_later_utterance(lab: TalkerLab) -> None:
    expected = latents_of(lab.speak(ASKED)[0])
    first = len(latents_of(lab.speak(replace(ASKED, text=split_text(CHINESE)[0]))[0]))
    key, output = SegmentKey("gone", 0), SegmentOutput()
    lab.engine.admit(key, lab.settings(ASKED))
    lab.engine.accept(key, message(CHINESE))
    while sum(len(each.tensors[LATENTS]) for each in output.emitted if each.tensors) < first + 2:
        advance(lab.engine, {key: output}, steps=1)
    lab.engine.release(key)
    assert not lab.engine.segments
    np.testing.assert_allclose(latents_of(lab.speak(ASKED)[0]), expected, rtol=0, atol=TOLERANCE)


def refused(lab: TalkerLab, *chunks: InputChunk) -> InvalidArgument:
    """The error of an input."""
    (output,) = say(lab, (Asked(), chunks))
    assert output.failed is not None
    assert isinstance(output.failed.error, InvalidArgument)
    return output.failed.error


def test_pieces_that_cannot_be_spoken_are_refused_by_their_field(lab: TalkerLab) -> None:
    silent = refused(lab, *by_size(" ... ", 2))
    assert silent.field == "input.utf8"
    assert "nothing to say" in silent.message
    broken = refused(lab, *by_size("水" * 3, 4)[:1], InputChunk(INPUT, 1, {}, True))
    assert broken.field == "input.utf8"
    key = SegmentKey("both", 0)
    lab.engine.admit(key, lab.settings(Asked()))
    lab.engine.accept(key, by_size("Hello there", 4)[0])
    with pytest.raises(InvalidArgument, match="can't be combined with `messages`"):
        lab.engine.accept(key, message("Hello"))
    with pytest.raises(InvalidArgument, match="too many"):
        lab.engine.accept(key, InputChunk(INPUT, 1, {PIECE: np.zeros(70_000, np.uint8)}))
    lab.engine.release(key)


def test_a_character_in_a_piece_of_its_own_is_spoken(lab: TalkerLab) -> None:
    (output,) = say(lab, (Asked(seed=4), by_size("水", 1)))
    (whole,) = lab.speak(Asked("水", seed=4))
    np.testing.assert_allclose(latents_of(output), latents_of(whole), rtol=0, atol=TOLERANCE)
