"""Holds answers of the running services against the reference."""

from __future__ import annotations

import numpy as np

from antiphon.values.segment import FinishReason
from antiphon_testkit.qwen2_5_omni.reference import Omni25Case
from tests.equality.asking import AUDIO_TOLERANCE, Answer
from tests.equality.qwen2_5_omni.omni25_truth import Omni25Truth

SAMPLES_PER_CODE = 480


def check(answer: Answer, case: Omni25Case, truth: Omni25Truth) -> None:
    """The law: text ids and codes are equal, audio is as long as it must be and near."""
    expected, spoken = truth.of(case), truth.spoken(case)
    assert answer.ids == expected.text_ids.tolist()
    assert answer.codes[:, 0].tolist() == spoken
    assert len(answer.samples) == SAMPLES_PER_CODE * len(spoken)
    waveform = truth.waveform(spoken, case)
    np.testing.assert_allclose(answer.samples, waveform, rtol=0, atol=AUDIO_TOLERANCE)
    ended = expected.drawn[-1] in (truth.ids.codec_pad, truth.ids.codec_end)
    cut = not ended or expected.text_finish is FinishReason.LENGTH
    assert answer.finished.finish_reason is (FinishReason.LENGTH if cut else FinishReason.STOP)
    usage = answer.finished.usage
    assert usage.prompt_tokens == len(expected.prompt_ids)
    assert usage.completion_tokens == len(expected.text_ids)
    assert usage.completion_audio_frames == len(spoken)
