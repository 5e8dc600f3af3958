"""Warm-up of models that speak a text: how long the text is, and what a failure raises."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest

from antiphon.errors import DataLoss, Internal
from antiphon.runtime.engine import Completed, Engine, Failed, InputChunk, SegmentSettings
from antiphon.values.conversation import TextPart, from_tensors
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.frames import PART_ROWS
from antiphon_services.lm.spoken_warm_up import WORD, reference_options, speak_text
from antiphon_services.lm.warm_up import FRAMES, run_segment

SAMPLING = Sampling(0.7, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=4096)
SETTINGS = SegmentSettings("", SAMPLING, frozenset({"codes"}))
FINISHED = InputChunk("input", 0, {}, True, FinishReason.STOP)


class NotingEngine:
    """Ends each segment at its first step, with `error` if it is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.settings: list[SegmentSettings] = []
        self.inputs: list[InputChunk] = []
        self.most_segments = 0
        self._open: dict[SegmentKey, None] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        self.settings.append(settings)
        self._open[key] = None
        self.most_segments = max(self.most_segments, len(self._open))

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        assert key in self._open
        self.inputs.append(chunk)

    def step(self, held: Collection[SegmentKey] = ()) -> list[Any]:
        if self._error is not None:
            return [Failed(key, cast("Any", self._error)) for key in self._open]
        return [Completed(key, FinishReason.STOP, 0, 0) for key in self._open]

    def release(self, key: SegmentKey) -> None:
        del self._open[key]

    @property
    def texts(self) -> list[str]:
        """The text of each input."""
        return [_text(chunk) for chunk in self.inputs]

    @property
    def open_segments(self) -> int:
        return len(self._open)


def _text(chunk: InputChunk) -> str:
    (message,) = from_tensors(chunk.tensors).messages
    (part,) = message.parts
    assert isinstance(part, TextPart)
    return part.text


def _spoken(room: int, error: Exception | None = None, slots: int = 3) -> NotingEngine:
    engine = NotingEngine(error)
    options = reference_options(24_000)
    speak_text(cast("Engine", engine), "input", "codes", SAMPLING, slots, room, options)
    return engine


def test_text_fills_a_part_of_a_prompt_then_one_word_in_every_slot() -> None:
    engine = _spoken(room=10_000 * len(WORD))
    assert engine.texts == [WORD * (PART_ROWS + 1), WORD, WORD, WORD]
    assert engine.most_segments == 3
    assert not engine.open_segments


def test_short_context_has_a_text_that_leaves_room_for_the_draws() -> None:
    assert _spoken(room=(FRAMES + 4) * len(WORD)).texts[0] == WORD * 4
    assert not _spoken(room=(FRAMES + 1) * len(WORD) - 1).texts


def test_recording_is_half_a_second_and_its_text_a_word() -> None:
    (options, *_) = [each.options for each in _spoken(room=100 * len(WORD)).settings]
    assert len(cast("Any", options["reference_audio"])) == 12_000
    assert options["reference_text"] == WORD


def test_failure_is_raised_and_leaves_nothing_open() -> None:
    with pytest.raises(Internal, match="warm-up: no layers"):
        _spoken(room=1000, error=DataLoss("no layers"))
    engine = NotingEngine(DataLoss("no decoder"))
    with pytest.raises(Internal, match="warm-up: no decoder"):
        run_segment(cast("Engine", engine), SETTINGS, FINISHED)
    assert not engine.open_segments


def test_segment_has_all_its_chunks_before_the_first_step() -> None:
    engine = NotingEngine()
    voice = InputChunk("voice", 0, {}, True, FinishReason.STOP)
    run_segment(cast("Engine", engine), SETTINGS, voice, FINISHED)
    assert engine.inputs == [voice, FINISHED]
