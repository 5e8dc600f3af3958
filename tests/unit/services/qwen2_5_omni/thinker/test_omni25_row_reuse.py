"""Rows of the thinker in later turns, in pieces, and in answers that nobody hears."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen2_5_omni import PROMPT, TOKENS
from antiphon.runtime.engine import Completed, Emitted
from antiphon.transport.device_edge import NoStream, Staging, ToHost
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen2_5_omni.thinker.load import load
from antiphon_services.thinker.engine import ThinkerEngine
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import SegmentOutput, run_segment
from antiphon_testkit.qwen2_5_omni.reference import Omni25Reference
from tests.unit.services.qwen2_5_omni.thinker.omni25_thinker_lab import (
    CONVERSATIONS,
    HIGH,
    MAX_TOKENS,
    TEXT,
    WIDE,
    Answer,
    answer,
    assert_equal,
    assert_near,
    picture,
    png,
    recording,
    rows_of,
    segment,
)

TEXT_ONLY = frozenset({TEXT})


def _cached(output: SegmentOutput) -> int:
    assert output.completed is not None
    return output.completed.input_cached_positions


def _next_turn(so_far: Conversation, output: SegmentOutput, words: str) -> Conversation:
    reply = output.tensors(TEXT)["utf8"].tobytes().decode()
    said = (
        ConversationMessage("assistant", (TextPart(reply),)),
        ConversationMessage("user", (TextPart(words),)),
    )
    return Conversation((*so_far.messages, *said), so_far.recordings, so_far.images)


@pytest.mark.parametrize("name", ["other text", "recording", "images", "all"])
@pytest.mark.parametrize("first_spoken", [True, False])
def test_spoken_turn_has_all_rows_when_it_reuses_the_turn_before(
    engine: ThinkerEngine, reference: Omni25Reference, name: str, first_spoken: bool
) -> None:
    asked, images = CONVERSATIONS[name]
    outputs = frozenset({TEXT, PROMPT, TOKENS}) if first_spoken else TEXT_ONLY
    before = run_segment(engine, *segment(asked, outputs=outputs))
    assert {each.edge for each in before.emitted} == outputs
    assert before.completed is not None
    again = _next_turn(asked, before, "And the water?")
    out = run_segment(engine, *segment(again))
    assert _cached(out) > before.completed.input_positions // 2
    assert_equal(out, answer(reference, again, images))


def test_nothing_is_reused_from_the_first_other_image_on(
    engine: ThinkerEngine, reference: Omni25Reference
) -> None:
    words = "Here is something to look at, look"
    other = picture(160, 96, seed=9)
    first, second = (conversation(("user", [words, png(each)])) for each in (WIDE, other))
    run_segment(engine, *segment(first))
    out = run_segment(engine, *segment(second))
    wanted = answer(reference, second, (other,))
    image = reference.model.config.thinker_config.image_token_index
    assert 0 < _cached(out) <= int(np.flatnonzero(wanted.truth.prompt_ids == image)[0])
    assert_equal(out, wanted)
    whole = run_segment(engine, *segment(second))
    assert _cached(whole) == len(wanted.truth.prompt_ids) - 1
    assert_near(rows_of(whole, PROMPT), wanted.prompt_rows)


def test_rows_leave_in_pieces_when_a_prefix_has_them_all(
    engine: ThinkerEngine, answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply ends long before: its segment stays until the last piece has left."""
    monkeypatch.setattr(engine, "_rows_at_once", 16)
    wanted = answers["recordings"]
    run_segment(engine, *segment(wanted.asked, outputs=TEXT_ONLY))
    key, out = SegmentKey("pieces", 0), SegmentOutput()
    settings, (chunk,) = segment(wanted.asked, max_tokens=2)
    engine.admit(key, settings)
    engine.accept(key, chunk)
    while out.completed is None:
        events = engine.step()
        sizes = [
            len(each.tensors["rows"])
            for each in events
            if isinstance(each, Emitted) and each.edge == PROMPT and "rows" in each.tensors
        ]
        assert sum(sizes) <= 16
        out.emitted += [each for each in events if isinstance(each, Emitted)]
        out.completed = next((each for each in events if isinstance(each, Completed)), None)
    engine.release(key)
    assert _cached(out) == len(wanted.truth.prompt_ids) - 1
    assert_near(rows_of(out, PROMPT), wanted.prompt_rows)
    edges = [each.edge for each in out.emitted]
    assert edges[-3:] == [PROMPT] * 3
    assert out.finish_reason(TOKENS) == FinishReason.LENGTH


def test_segment_can_be_cancelled_while_its_last_rows_leave(
    engine: ThinkerEngine, answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_rows_at_once", 16)
    wanted = answers["recordings"]
    run_segment(engine, *segment(wanted.asked, outputs=TEXT_ONLY))
    key = SegmentKey("cancelled", 0)
    settings, (chunk,) = segment(wanted.asked, max_tokens=1)
    engine.admit(key, settings)
    engine.accept(key, chunk)
    while not any(isinstance(each, Emitted) and each.edge == TEXT for each in engine.step()):
        pass
    engine.release(key)
    assert_equal(run_segment(engine, *segment(wanted.asked)), wanted)


class _CountingStream(NoStream):
    """Counts the copies to the host."""

    def __init__(self) -> None:
        self.begun = 0

    def begin(self, target: object, source: object) -> None:
        self.begun += 1
        super().begin(target, source)  # type: ignore[arg-type]


def test_rows_are_copied_once_a_step_and_only_for_speech(
    omni25_directory: Path, answers: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = _CountingStream()
    staging = Staging(1 << 22, pinned=False)
    monkeypatch.setattr(ToHost, "of", lambda config: ToHost(copies, staging))
    engine = load(omni25_directory, StageConfig(slots=2)).engine
    wanted = answers["text"]
    copies.begun = 0
    run_segment(engine, *segment(wanted.asked, outputs=TEXT_ONLY))
    assert copies.begun == 0
    other = conversation(("user", [recording(1.0, 11), "Now"]))
    segments = [segment(each, temperature=1.0) for each in (wanted.asked, other)]
    keys = [SegmentKey("both", at) for at in range(2)]
    for key, (settings, (chunk,)) in zip(keys, segments, strict=True):
        engine.admit(key, settings)
        engine.accept(key, chunk)
    ended, prompts, steps = 0, 0, 0
    while ended < 2:
        events = engine.step()
        steps += any(isinstance(each, Emitted) and each.edge == TOKENS for each in events)
        prompts += sum(
            isinstance(each, Emitted) and each.edge == PROMPT and "rows" in each.tensors
            for each in events
        )
        ended += sum(isinstance(each, Completed) for each in events)
    for key in keys:
        engine.release(key)
    assert steps <= copies.begun - prompts <= steps + 1
    assert steps > MAX_TOKENS // 2


def test_images_of_other_turns_stay_apart(
    engine: ThinkerEngine, reference: Omni25Reference
) -> None:
    """Positions behind an image are fewer than ids, in the prompt and in the reply."""
    asked = conversation(("user", [png(HIGH)]), ("assistant", "High."), ("user", "And wide?"))
    wanted = answer(reference, asked, (HIGH,))
    assert_equal(run_segment(engine, *segment(asked)), wanted)
