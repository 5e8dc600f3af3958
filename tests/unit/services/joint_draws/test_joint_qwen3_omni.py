"""Sampled tokens and codes of Qwen3-Omni have the reference's joint distribution."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import InputChunk
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from antiphon_services.lm import codebooks, grouped_frames, sampling
from antiphon_services.qwen3_omni.talker.load import load as load_talker
from antiphon_services.qwen3_omni.talker.model import CONTROL_IDS, PREDICTOR_SAMPLING
from antiphon_services.qwen3_omni.thinker.load import load as load_thinker
from antiphon_testkit.qwen3_omni.tiny_checkpoint import SMALL, build_tiny_checkpoint
from tests.unit.services.joint_draws.joint_lab import (
    REQUESTS,
    TOGETHER,
    JointDraws,
    Recorder,
    StageDraws,
    handed_on,
    processors,
    run_together,
    settings_of,
)

TOKENS, FRAMES, GROUPS = 3, 3, (1, 2, 3)
THINKS = Sampling(1.2, top_k=20, top_p=0.95, repetition_penalty=1.3, seed=0, max_tokens=TOKENS + 1)
TALKS = Sampling(0.9, top_k=30, top_p=0.9, repetition_penalty=1.3, seed=0, max_tokens=FRAMES + 1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("joint") / "qwen3-omni"
    build_tiny_checkpoint(directory, SMALL, seed=3)
    return directory


def test_tokens_and_codes_are_drawn_from_the_references_joint_distribution(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StageConfig(slots=TOGETHER, context_limit=128)
    thinker = load_thinker(checkpoint, config)
    asked = Conversation((ConversationMessage("user", (TextPart("Say water"),)),))
    chunk = InputChunk("input", 0, to_tensors(asked), True, FinishReason.STOP)
    joint = JointDraws()

    thought = StageDraws(
        settings_of(PIPELINE, "thinker", THINKS, ("text", "prompt", "tokens")),
        Recorder.of(monkeypatch, sampling),
    )
    outputs = run_together(thinker.engine, thought.settings, [[chunk]] * REQUESTS)
    thought.check_left(outputs, "tokens", "ids")
    prompts = np.stack([each.tensors("prompt")["ids"] for each in outputs]).astype(np.int64)
    ids, chain = thought.ids(TOKENS), processors(THINKS)
    for step in range(TOKENS):
        history = np.concatenate((prompts, ids[:, :step]), axis=1)
        joint.add(f"token {step}", thought.draws(step), history, chain)

    spoken = StageDraws(
        settings_of(PIPELINE, "talker", TALKS, ("codes",)),
        Recorder.of(monkeypatch, grouped_frames, codebooks),
    )
    # A talker takes its sampler when it is loaded.
    talker = load_talker(checkpoint, config)
    heard = [handed_on(each, ("prompt", "tokens")) for each in outputs]
    outputs = run_together(talker.engine, spoken.settings, heard)
    spoken.check_left(outputs, "codes", "codes")
    codes, nothing = spoken.ids(FRAMES), np.zeros((REQUESTS, 0), np.int64)
    first, later = processors(TALKS, never_drawn(checkpoint)), processors(PREDICTOR_SAMPLING)
    for step in range(FRAMES):
        joint.add(f"frame {step}", spoken.draws(step), codes[:, :step], first)
        for group in GROUPS:
            name = f"frame {step}, group {group}"
            joint.add(name, spoken.draws(step, group), nothing, later)
    joint.check()


def never_drawn(checkpoint: Path) -> list[int]:
    """What the reference's call suppresses: the control ids but for the stop code."""
    told = read_config(checkpoint)["talker_config"]
    vocabulary, stop = told["text_config"]["vocab_size"], told["codec_eos_token_id"]
    return sorted(set(range(vocabulary - CONTROL_IDS, vocabulary)) - {stop})
