"""A loaded talker, asked as the vendor's package was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen3_tts import SAMPLE_RATE_HZ
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.chunk import Tensor, Tensors
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.options import OptionValue
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_gateway.media.resampling import RecordingResampler
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.readback import Readback
from antiphon_services.qwen3_tts.talker.engine import CODES, TtsTalkerEngine
from antiphon_services.qwen3_tts.talker.load import load
from antiphon_services.qwen3_tts.talker.tts_segment import INPUT
from antiphon_services.qwen3_tts.talker.voice_options import CheckpointKind
from antiphon_testkit.drive_engine import SegmentOutput, run_segments
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.late_copies import late_to_host
from tests.equality.qwen3_tts.cases import (
    REFERENCE,
    REFERENCE_TEXT,
    Case,
    Recording,
    all_cases,
)

CASES = {case.name: case for case in all_cases()}
SLOTS, LIMIT = 9, 512
GREEDY = Sampling(0.0, 50, 1.0, 1.05, seed=0, max_tokens=14)
SAMPLED = replace(GREEDY, temperature=0.9, max_tokens=9)

Asked = tuple[SegmentSettings, Sequence[InputChunk]]


class Lab:
    """One checkpoint's engine."""

    def __init__(
        self,
        path: Path,
        recorded: Tensors,
        *,
        limit: int = LIMIT,
        dtype: Literal["float32", "bfloat16"] = "float32",
        bucketing: Bucketing | None = None,
        launch_ahead: bool = False,
    ) -> None:
        config = stage_config(
            slots=SLOTS, context_limit=limit, dtype=dtype, launch_ahead=launch_ahead
        )
        with pytest.MonkeyPatch.context() as patch:
            if launch_ahead:
                # Frames are on the host only when they are waited for.
                patch.setattr(Readback, "of", lambda _: Readback(late_to_host()))
            stage = load(path, config, bucketing)
        assert isinstance(stage.engine, TtsTalkerEngine)
        self.engine, self.facts, self.recorded = stage.engine, stage.facts, recorded
        self.kind = CheckpointKind.from_config(read_config(path))
        self.launch_ahead = launch_ahead

    @property
    def sound(self) -> Tensor:
        """The recording that voices are cloned from; as it comes in a message, not writable."""
        return self.heard(REFERENCE)

    def heard(self, recording: Recording) -> Tensor:
        """A recording as the gateway sends it, at 24 kHz."""
        stored = self.recorded["reference/audio"].astype(np.int16)
        sound = recording.of(stored).astype(np.float32) / 32768
        if recording.rate_hz != SAMPLE_RATE_HZ:
            sound = RecordingResampler(recording.rate_hz, SAMPLE_RATE_HZ).add(sound, last=True)
        return np.frombuffer(sound.tobytes(), np.float32)

    def ask(self, case: Case, sampling: Sampling | None = None) -> Asked:
        """A recorded case, greedy unless told otherwise."""
        options: dict[str, OptionValue] = {"text_mode": "whole" if case.whole_text else "stream"}
        if case.language != "auto":
            options["language"] = case.language
        if case.instruction:
            options["instruction"] = case.instruction
        if case.clone:
            options["reference_audio"] = self.heard(case.recording)
        if case.clone == "codes":
            options["reference_text"] = REFERENCE_TEXT
        chosen = sampling or replace(GREEDY, max_tokens=case.max_new_tokens)
        return asked(case.text, chosen, voice=case.voice, **options)

    def expected(self, case: Case) -> list[list[int]]:
        """The recorded frames."""
        frames: list[list[int]] = self.recorded[f"{case.name}/codes"].tolist()
        return frames

    def speak(self, *questions: Asked) -> list[SegmentOutput]:
        """Answers to all, given together."""
        keys = [SegmentKey("asked", index) for index in range(len(questions))]
        outputs = run_segments(self.engine, dict(zip(keys, questions, strict=True)))
        return [outputs[key] for key in keys]


def asked(
    text: str, sampling: Sampling = GREEDY, *, voice: str = "", **options: OptionValue
) -> Asked:
    """A question in words."""
    settings = SegmentSettings(voice, sampling, frozenset({CODES}), options)
    message = ConversationMessage("user", (TextPart(text),))
    tensors = to_tensors(Conversation((message,)))
    return settings, [InputChunk(INPUT, 0, tensors, True, FinishReason.STOP)]


def frames_of(output: SegmentOutput) -> list[list[int]]:
    """The frames of an answer, which must have ended well and in order."""
    assert output.failed is None, output.failed
    assert output.completed is not None
    made = [each for each in output.emitted if each.tensors and not each.prime]
    assert [each.position for each in made] == list(range(len(made)))
    assert all(each.tensors["codes"].dtype == np.uint16 for each in made)
    assert output.completed.output_positions == len(made)
    assert output.finish_reason(CODES) is output.completed.finish_reason
    return [each.tensors["codes"][0].tolist() for each in made]
