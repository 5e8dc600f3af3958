"""What attention costs a GPU's host: layouts of calls that it plans for, and masks that it copies.

On a GPU torch may plan each new layout of an attention call for tens of milliseconds, and it
converts or copies a mask that its kernels do not take as it is, in every layer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon_services.lm.graphs import Bucketing, Eager
from antiphon_services.vllm import environment
from antiphon_services.vocoder.stream import StreamPiece
from antiphon_testkit.launches import Launches, launches_on_meta, meta_as_a_gpu
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint
from benchmarks.operations import families, models
from benchmarks.operations.families import Step

GROUPS = 4
PREDICTED = GROUPS - 1
"""Positions that a code predictor attends from, each with a layout of its own."""
# Few layers, which all make the same calls.
OMNI3 = replace(
    models.OMNI3,
    layers=2,
    accept_layer=1,
    talker_layers=2,
    code_groups=GROUPS,
    predictor_layers=1,
    decoder_layers=2,
)
OMNI25 = replace(models.OMNI25, layers=2, talker_layers=2, flow_layers=2)
TTS = replace(models.TTS, layers=2, code_groups=GROUPS, predictor_layers=1, decoder_layers=2)
COSY = replace(models.COSY, layers=2)
STEPS, SESSIONS, SLOTS = 64, 8, 16

DECODERS: dict[str, Callable[[torch.device], Step]] = {
    "omni3_thinker": lambda device: families.thinker_step(
        models.omni3_thinker(device, OMNI3, SLOTS)
    ),
    "omni25_thinker": lambda device: families.thinker_step(
        models.omni25_thinker(device, OMNI25, SLOTS)
    ),
    "omni3_talker": lambda device: families.omni3_talker_step(
        models.omni3_talker(device, OMNI3, SLOTS)
    ),
    "omni25_talker": lambda device: families.omni25_talker_step(
        models.omni25_talker(device, OMNI25, SLOTS)
    ),
    "tts_talker": lambda device: families.tts_talker_step(models.tts_talker(device, TTS, SLOTS)),
    "cosy_talker": lambda device: families.cosy_talker_step(
        models.cosy_talker(device, COSY, SLOTS)
    ),
}


@pytest.fixture(scope="module")
def device() -> Iterator[torch.device]:
    with meta_as_a_gpu() as device:
        yield device


def watch(step: Step, sessions: int) -> Launches:
    with launches_on_meta() as launches:
        for turn in range(STEPS):
            step(sessions, 100 + turn)
    return launches


@pytest.mark.parametrize("decoder", DECODERS)
@torch.no_grad()
def test_sessions_that_decode_ask_for_few_layouts_of_attention(
    decoder: str, device: torch.device
) -> None:
    launches = watch(DECODERS[decoder](device), SESSIONS)
    talks = decoder in ("omni3_talker", "tts_talker")
    assert len(launches.attention) >= 2 * STEPS
    assert len(set(launches.attention)) <= 2 + PREDICTED * talks
    assert launches.misfits == []


def test_vocoders_hand_masks_over_as_kernels_take_them(device: torch.device) -> None:
    for decoder in (models.omni3_code2wav(device, OMNI3), models.tts_code2wav(device, TTS)):
        states = decoder.new_states(4)
        for frames in (1, 4, 5):
            codes = np.zeros((frames, decoder.groups), np.uint16)
            pieces = [StreamPiece(slot, codes) for slot in range(4)]
            with launches_on_meta() as launches:
                type(decoder).advance.__wrapped__(decoder, states, pieces)  # type: ignore[attr-defined]
            assert launches.attention
            assert launches.misfits == []


@pytest.mark.parametrize("bucketing", [None, Eager], ids=["eager", "replayed"])
def test_flow_hands_masks_over_as_kernels_take_them(
    bucketing: Bucketing | None, device: torch.device
) -> None:
    flow = models.omni25_flow(device, OMNI25, bucketing)
    # A replayed call does all layers at once.
    layers = OMNI25.flow_layers if bucketing is None else 1
    step = families.omni25_flow_step(flow, OMNI25.speaker_width, layers)
    with launches_on_meta() as launches:
        step(3, 0)
    assert sum(len(call) == 4 for call in launches.attention) >= OMNI25.flow_layers
    assert launches.misfits == []


def test_stage_never_asks_cudnn_for_attention(tmp_path: Path) -> None:
    """In a process of its own: the switch is the process's, and torch's default is on."""
    build_tiny_checkpoint(tmp_path)
    code = f"""
from pathlib import Path
import torch
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_services.stage.loading import load_stage
assert torch.backends.cuda.cudnn_sdp_enabled()
load_stage(PIPELINE, "code2wav", Path({str(tmp_path)!r}), StageConfig())
assert not torch.backends.cuda.cudnn_sdp_enabled()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_vllm_puts_cudnn_last_in_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_installed", lambda: True)
    set_now: dict[str, str] = {}
    environment.prepare(StageConfig(device="cuda"), {}, set_now)
    assert set_now["TORCH_CUDNN_SDPA_DEPRIORITIZED"] == "1"
    assert "TORCH_CUDNN_SDPA_DEPRIORITIZED" not in os.environ
