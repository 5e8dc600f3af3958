"""Talkers whose sessions all take the likeliest code compute no numbers to draw with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from antiphon.values.sampling import Sampling
from antiphon_services.lm import sampler
from antiphon_testkit.launches import launches_on_meta, meta_as_a_gpu
from benchmarks.operations import families, models
from benchmarks.operations.families import Step

SESSIONS = 5
OMNI3 = replace(models.OMNI3, talker_layers=2, code_groups=4, predictor_layers=1)
OMNI25 = replace(models.OMNI25, talker_layers=2)
TTS = replace(models.TTS, layers=2, code_groups=4, predictor_layers=1)
COSY = replace(models.COSY, layers=2)
MIMO = replace(models.MIMO, layers=2, local_layers=1, group_layers=1)

TALKERS: dict[str, Callable[[torch.device, Sampling], Step]] = {
    "Qwen3-Omni": lambda device, sampling: families.omni3_talker_step(
        models.omni3_talker(device, OMNI3), sampling
    ),
    "Qwen2.5-Omni": lambda device, sampling: families.omni25_talker_step(
        models.omni25_talker(device, OMNI25), sampling
    ),
    "Qwen3-TTS": lambda device, sampling: families.tts_talker_step(
        models.tts_talker(device, TTS), sampling
    ),
    "CosyVoice3": lambda device, sampling: families.cosy_talker_step(
        models.cosy_talker(device, COSY), sampling
    ),
    "MiMo-Audio": lambda device, sampling: families.mimo_talker_step(
        models.mimo_talker(device, MIMO), sampling
    ),
}


@pytest.mark.parametrize(("temperature", "hashed"), [(0.0, 0), (0.9, SESSIONS)])
@pytest.mark.parametrize("family", TALKERS)
def test_numbers_are_computed_for_sessions_that_draw_alone(
    family: str, temperature: float, hashed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bytes] = []
    hash_of: Any = sampler.shake_128

    def counted(data: bytes) -> Any:
        calls.append(data)
        return hash_of(data)

    monkeypatch.setattr(sampler, "shake_128", counted)
    with meta_as_a_gpu() as device, torch.no_grad():
        step = TALKERS[family](device, replace(models.DRAWN, temperature=temperature))
        with launches_on_meta():
            step(SESSIONS, 40)
    assert len(calls) == hashed
