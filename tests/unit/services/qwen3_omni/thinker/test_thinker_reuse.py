from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_omni import AUDIO_CHUNK_POSITIONS
from antiphon.runtime.engine import Engine, LoadedStage
from antiphon.values.conversation import AudioPart, Conversation, ConversationMessage, TextPart
from antiphon.values.segment import SegmentKey
from antiphon_services.qwen3_omni.thinker.load import load
from antiphon_services.thinker.audio import AudioFeatures
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_services.thinker.model import Fed, ThinkerFeed, ThinkerModel
from antiphon_services.thinker.patches import VisualPatches
from antiphon_testkit.conversations import live_chunks
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment, run_segments
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import (
    AUDIO,
    TEXT,
    ask,
    conversation,
    recording,
    say,
    segment,
)
from tests.unit.services.qwen3_omni.thinker.thinker_reference import MARGIN, Reference

TURN_TOKENS = 12
SYSTEM = say("You are the voice of the water and of the time.", role="system")


@pytest.fixture
def engine(stage: LoadedStage) -> ThinkerEngine:
    assert isinstance(stage.engine, ThinkerEngine)
    stage.engine.forget()
    return stage.engine


def _cached(output: SegmentOutput) -> int:
    assert output.completed is not None
    return output.completed.input_cached_positions


def _next_turn(so_far: Conversation, output: SegmentOutput, words: str) -> Conversation:
    """The conversation with the reply that came and a new question."""
    reply = output.tensors("text")["utf8"].tobytes().decode()
    said = (
        ConversationMessage("assistant", (TextPart(reply),)),
        ConversationMessage("user", (TextPart(words),)),
    )
    return Conversation((*so_far.messages, *said), so_far.recordings)


def _assert_equal(reference: Reference, spoken_to: Conversation, output: SegmentOutput) -> None:
    """Equal ids (up to a choice that rounding may decide) and rows, as without reuse."""
    expected = reference.reply(spoken_to, TURN_TOKENS)
    prompt = output.tensors("prompt")
    assert prompt["ids"].tolist() == expected.prompt_ids.tolist()
    if expected.margin >= MARGIN:
        assert output.tensors("text")["ids"].tolist() == expected.ids
    if "rows" in prompt:
        rows = expected.hidden[prompt["row_positions"]]
        scale = np.abs(rows).max(-1, keepdims=True)
        np.testing.assert_allclose(prompt["rows"] / scale, rows / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("first", [TEXT[4], AUDIO[0], AUDIO[1], AUDIO[2]])
def test_turns_of_a_conversation_reuse_what_went_before(
    engine: ThinkerEngine, reference: Reference, first: Conversation
) -> None:
    spoken_to = first
    before = 0
    for words in ("What is the time", "And the water?", "No more"):
        out = run_segment(engine, *segment(spoken_to, max_tokens=TURN_TOKENS))
        _assert_equal(reference, spoken_to, out)
        assert _cached(out) >= before
        assert out.completed is not None
        before = out.completed.input_positions
        spoken_to = _next_turn(spoken_to, out, words)
    assert before > 0


def test_rows_of_reused_audio_come_again_in_the_next_turn(
    engine: ThinkerEngine, reference: Reference
) -> None:
    silent = run_segment(engine, *segment(AUDIO[1], outputs=frozenset({"text"})))
    spoken_to = _next_turn(AUDIO[1], silent, "Say it")
    out = run_segment(engine, *segment(spoken_to, max_tokens=TURN_TOKENS))
    positions = out.tensors("prompt")["row_positions"]
    assert len(positions)
    assert _cached(out) > positions.max()
    _assert_equal(reference, spoken_to, out)


def _alone(index: int) -> ConversationMessage:
    return ConversationMessage("user", (AudioPart(index, alone=True),))


def _row_positions(output: SegmentOutput) -> list[int]:
    """Of the rows that have left."""
    told = [each.tensors for each in output.emitted if "row_positions" in each.tensors]
    return [at for each in told for at in each["row_positions"].tolist()]


def test_rows_of_earlier_turns_leave_while_the_next_one_is_spoken(
    engine: ThinkerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are: when the user stops, only what is new is left."""
    monkeypatch.setattr(engine, "_rows_at_once", 4)
    first, second = recording(3.0), recording(1.5, seed=4)
    run_segment(engine, *segment(Conversation((_alone(0),), (first,)), max_tokens=TURN_TOKENS))
    answer = ConversationMessage("assistant", (TextPart("Two people"),))
    spoken_to = Conversation((_alone(0), answer, _alone(1)), (first, second))
    settings, _ = segment(spoken_to, max_tokens=TURN_TOKENS)
    key, out = SegmentKey("spoken", 0), SegmentOutput()
    engine.admit(key, replace(settings, live=True))
    *chunks, end = live_chunks(spoken_to, [8000])
    for chunk in chunks:
        engine.accept(key, chunk)
        advance(engine, {key: out})
    earlier = _row_positions(out)
    assert len(earlier) == 3 * AUDIO_CHUNK_POSITIONS
    assert engine.awaited_edge(key) == "input"
    engine.accept(key, end)
    advance(engine, {key: out})
    assert out.completed is not None
    whole = run_segment(engine, *segment(spoken_to, max_tokens=TURN_TOKENS))
    assert _row_positions(out) == _row_positions(whole)
    assert _row_positions(out)[: len(earlier)] == earlier
    assert out.tensors("text")["ids"].tolist() == whole.tensors("text")["ids"].tolist()


def test_audio_that_follows_reused_audio_is_encoded_as_in_the_whole(
    engine: ThinkerEngine, reference: Reference
) -> None:
    heard = conversation(say(1.5, "one"))
    out = run_segment(engine, *segment(heard, max_tokens=TURN_TOKENS))
    more = _next_turn(heard, out, "and this?")
    spoken_to = Conversation(
        (*more.messages, ConversationMessage("user", (AudioPart(1),))),
        (*heard.recordings, recording(1.2, 5)),
    )
    again = run_segment(engine, *segment(spoken_to, max_tokens=TURN_TOKENS))
    assert _cached(again) > 0
    _assert_equal(reference, spoken_to, again)


@pytest.mark.parametrize("seconds", [(1.5, 0.4, 1.2), (0.7, 0.3, 0.5), (0.3, 0.7, 0.4)])
def test_recordings_of_earlier_turns_are_not_encoded_again(
    engine: ThinkerEngine, monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float, float]
) -> None:
    """What is new is encoded as in the whole, also where all are so short that the longest of them
    decides how."""
    encoded: list[int] = []
    model = engine.model
    encode = model.encode

    def count(piece: AudioFeatures | VisualPatches) -> torch.Tensor:
        made = encode(piece)
        encoded.append(len(made))
        return made

    monkeypatch.setattr(model, "encode", count)
    said = [recording(each, seed=index) for index, each in enumerate(seconds)]
    answer = ConversationMessage("assistant", (TextPart("Two people"),))
    turns = (_alone(0), answer, _alone(1), answer, _alone(2))
    spoken_to = [Conversation(turns[: 2 * n + 1], tuple(said[: n + 1])) for n in range(3)]
    of_turns = []
    for each in spoken_to:
        out = run_segment(engine, *segment(each, max_tokens=TURN_TOKENS))
        of_turns.append((out.tensors("prompt"), out.tensors("text")["ids"].tolist()))
    again = list(encoded)
    engine.forget()
    encoded.clear()
    whole = run_segment(engine, *segment(spoken_to[-1], max_tokens=TURN_TOKENS))
    of_each = _positions_of_each(whole)
    assert encoded == [sum(of_each)]
    assert again[-1] == of_each[-1]
    prompt, ids = of_turns[-1]
    rows, scale = whole.tensors("prompt")["rows"], np.abs(whole.tensors("prompt")["rows"]).max()
    np.testing.assert_allclose(prompt["rows"] / scale, rows / scale, rtol=0, atol=1e-5)
    assert ids == whole.tensors("text")["ids"].tolist()


def _positions_of_each(output: SegmentOutput) -> list[int]:
    """How many positions the prompt's recordings take, one after the other."""
    positions = output.tensors("prompt")["row_positions"]
    return [len(each) for each in np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)]


def test_nothing_is_reused_from_the_first_other_sound_on(
    engine: ThinkerEngine, reference: Reference
) -> None:
    heard = conversation(SYSTEM, say("Listen: ", 1.0, " yes"))
    other = Conversation(heard.messages, (recording(1.0, seed=9),))
    run_segment(engine, *segment(heard, max_tokens=TURN_TOKENS))
    out = run_segment(engine, *segment(other, max_tokens=TURN_TOKENS))
    first_audio = out.tensors("prompt")["row_positions"][0]
    assert 0 < _cached(out) <= first_audio
    _assert_equal(reference, other, out)


def test_common_beginning_is_copied_and_the_other_conversation_keeps_its_own(
    engine: ThinkerEngine, reference: Reference
) -> None:
    first, second = (conversation(SYSTEM, say(words)) for words in ("One two", "People"))
    out = run_segment(engine, *segment(first, max_tokens=TURN_TOKENS))
    branch = run_segment(engine, *segment(second, max_tokens=TURN_TOKENS))
    assert _cached(branch) > 0
    _assert_equal(reference, second, branch)
    spoken_to = _next_turn(first, out, "And?")
    back = run_segment(engine, *segment(spoken_to, max_tokens=TURN_TOKENS))
    assert _cached(back) > _cached(branch)
    _assert_equal(reference, spoken_to, back)


def test_interrupted_reply_is_reused_and_a_broken_off_prompt_is_not(small_dir: Path) -> None:
    engine = load(small_dir, StageConfig(), prefill_rows=16).engine
    key, cut = SegmentKey("interrupted", 0), SegmentKey("broken off", 0)
    long = conversation(SYSTEM, say("How many people"))
    for each, steps in ((cut, 2), (key, 12)):
        _feed(engine, each, long)
        for _ in range(steps):
            engine.step()
        engine.release(each)
        out = run_segment(engine, *segment(long, max_tokens=2), SegmentKey(each.session_id, 1))
        assert out.completed is not None
        whole = out.completed.input_positions - 1
        assert _cached(out) == (0 if each is cut else whole)
        assert isinstance(engine, ThinkerEngine)
        engine.forget()


def _feed(engine: Engine, key: SegmentKey, spoken_to: Conversation) -> None:
    settings, [chunk] = segment(spoken_to)
    engine.admit(key, settings)
    engine.accept(key, chunk)


class _CountingModel(ThinkerModel):
    """Counts what is fed."""

    rows = 0

    def forward(self, feeds: Sequence[ThinkerFeed]) -> list[Fed]:
        self.rows += sum(len(each.ids) for each in feeds)
        return super().forward(feeds)


def test_reused_positions_are_not_computed_again(small_dir: Path) -> None:
    engine = load(small_dir, StageConfig()).engine
    assert isinstance(engine, ThinkerEngine)
    engine.model.__class__ = _CountingModel
    long = ask("the water and the time " * 12)
    for cached in (False, True):
        before = engine.model.rows  # type: ignore[attr-defined]
        out = run_segment(engine, *segment(long, max_tokens=3))
        assert out.completed is not None
        fed = engine.model.rows - before  # type: ignore[attr-defined]
        assert (_cached(out) > 0) == cached
        assert fed == out.completed.input_positions - _cached(out) + 2


class _FaultyCopy(ThinkerModel):
    """Faults when a beginning is copied to another slot."""

    def copy(self, source: int, target: int, positions: int) -> None:
        raise RuntimeError("no copy")


def test_segment_fails_alone_and_gives_its_slot_back_when_a_copy_faults(small_dir: Path) -> None:
    engine = load(small_dir, StageConfig(slots=2)).engine
    assert isinstance(engine, ThinkerEngine)
    engine.model.__class__ = _FaultyCopy
    kept, branch, other = (
        segment(conversation(SYSTEM, say(words)), max_tokens=TURN_TOKENS)
        for words in ("One two", "People", "What is the time")
    )
    first = run_segment(engine, *kept)
    assert first.completed is not None
    for _ in range(3):
        out = run_segments(engine, {SegmentKey("branch", 0): branch, SegmentKey("other", 0): other})
        for each in out.values():
            assert each.failed is not None
            assert "no copy" in each.failed.error.message
    # One takes the kept slot over beside one that needs a copy of it, and nothing is lost.
    again = run_segments(engine, {SegmentKey("branch", 1): branch, SegmentKey("again", 0): kept})
    assert again[SegmentKey("branch", 1)].failed is not None
    assert again[SegmentKey("again", 0)].tensors("text")["ids"].tolist() == (
        first.tensors("text")["ids"].tolist()
    )
    engine.forget()
    assert run_segment(engine, *branch).completed is not None
