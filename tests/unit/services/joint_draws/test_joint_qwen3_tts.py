"""Sampled codes of Qwen3-TTS have the reference's joint distribution over groups and frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen3_tts import PIPELINE, TALKER
from antiphon.runtime.engine import InputChunk
from antiphon.values.conversation import to_tensors
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from antiphon_services.lm import codebooks, grouped_frames
from antiphon_services.qwen3_tts.talker.load import PREDICTOR_SAMPLING, load
from antiphon_services.qwen3_tts.talker.talker import CONTROL_IDS, LEAST_DRAWS
from antiphon_testkit.conversations import conversation
from antiphon_testkit.qwen3_tts.tiny_checkpoint import CUSTOM_VOICE, build_tiny_tts
from tests.unit.services.joint_draws.joint_lab import (
    REQUESTS,
    TOGETHER,
    JointDraws,
    Recorder,
    StageDraws,
    processors,
    run_together,
    settings_of,
)

FRAMES, GROUPS = 4, (1, 2, 3)
TALKS = Sampling(3.0, top_k=30, top_p=0.9, repetition_penalty=1.3, seed=0, max_tokens=FRAMES + 1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("joint") / "qwen3-tts"
    build_tiny_tts(directory, CUSTOM_VOICE)
    return directory


def test_codes_are_drawn_from_the_references_joint_distribution(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = InputChunk(
        "input", 0, to_tensors(conversation(("user", "Say water"))), True, FinishReason.STOP
    )
    joint = JointDraws()
    spoken = StageDraws(
        settings_of(PIPELINE, TALKER, TALKS, ("codes",)),
        Recorder.of(monkeypatch, grouped_frames, codebooks),
    )
    # A talker takes its sampler when it is loaded.
    talker = load(checkpoint, StageConfig(slots=TOGETHER, context_limit=128))
    outputs = run_together(talker.engine, spoken.settings, [[chunk]] * REQUESTS)
    spoken.check_left(outputs, "codes", "codes")
    codes, nothing = spoken.ids(FRAMES), np.zeros((REQUESTS, 0), np.int64)
    told = read_config(checkpoint)["talker_config"]
    vocabulary, stop = told["vocab_size"], told["codec_eos_token_id"]
    control = set(range(vocabulary - CONTROL_IDS, vocabulary))
    later = processors(PREDICTOR_SAMPLING)
    for step in range(FRAMES):
        never = control if step < LEAST_DRAWS else control - {stop}
        first = processors(TALKS, sorted(never))
        joint.add(f"frame {step}", spoken.draws(step), codes[:, :step], first)
        for group in GROUPS:
            name = f"frame {step}, group {group}"
            joint.add(name, spoken.draws(step, group), nothing, later)
    joint.check()
