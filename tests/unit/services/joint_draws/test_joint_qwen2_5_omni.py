"""Sampled tokens and codes of Qwen2.5-Omni have the reference's joint distribution, and its noise
is apart from both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen2_5_omni import PIPELINE, TALKER, THINKER, TOKEN2WAV, noise_source
from antiphon.runtime.engine import InputChunk
from antiphon.values.conversation import to_tensors
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from antiphon_services.lm import sampling
from antiphon_services.qwen2_5_omni.talker import model
from antiphon_services.qwen2_5_omni.talker.ids import TalkerIds
from antiphon_services.qwen2_5_omni.talker.load import load as load_talker
from antiphon_services.qwen2_5_omni.thinker.load import load as load_thinker
from antiphon_testkit.conversations import conversation
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint
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

TOKENS, CODES, NOISE = 3, 3, 4
THINKS = Sampling(1.2, top_k=20, top_p=0.95, repetition_penalty=1.3, seed=0, max_tokens=TOKENS + 1)
TALKS = Sampling(0.9, top_k=40, top_p=0.8, repetition_penalty=1.3, seed=0, max_tokens=CODES + 1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("joint") / "qwen2.5-omni"
    build_tiny_checkpoint(directory)
    return directory


def test_tokens_and_codes_are_drawn_from_the_references_joint_distribution(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StageConfig(slots=TOGETHER, context_limit=128)
    thinker, talker = load_thinker(checkpoint, config), load_talker(checkpoint, config)
    asked = to_tensors(conversation(("user", "Say water")))
    chunk = InputChunk("input", 0, asked, True, FinishReason.STOP)
    joint = JointDraws()

    thought = StageDraws(
        settings_of(PIPELINE, THINKER, THINKS, ("text", "prompt", "tokens")),
        Recorder.of(monkeypatch, sampling),
    )
    outputs = run_together(thinker.engine, thought.settings, [[chunk]] * REQUESTS)
    thought.check_left(outputs, "text", "ids")
    prompts = np.stack([each.tensors("prompt")["ids"] for each in outputs]).astype(np.int64)
    ids, chain = thought.ids(TOKENS), processors(THINKS)
    for step in range(TOKENS):
        history = np.concatenate((prompts, ids[:, :step]), axis=1)
        joint.add(f"token {step}", thought.draws(step), history, chain)

    spoken = StageDraws(
        settings_of(PIPELINE, TALKER, TALKS, ("codes",)), Recorder.of(monkeypatch, model)
    )
    heard = [handed_on(each, ("prompt", "tokens")) for each in outputs]
    outputs = run_together(talker.engine, spoken.settings, heard)
    spoken.check_left(outputs, "codes", "codes")
    special = TalkerIds.from_config(read_config(checkpoint))
    # What the reference has before the first code.
    before = np.array([special.codec_mask, special.codec_pad, special.codec_bos])
    codes, chain = spoken.ids(CODES), processors(TALKS, [special.codec_bos])
    for step in range(CODES):
        history = np.concatenate((np.tile(before, (REQUESTS, 1)), codes[:, :step]), axis=1)
        joint.add(f"code {step}", spoken.draws(step), history, chain)

    decoded = settings_of(PIPELINE, TOKEN2WAV, TALKS, ("audio",))
    drawn = [noise_source(each.sampling.seed).standard_normal(NOISE) for each in decoded]
    spread = torch.special.ndtr(torch.from_numpy(np.stack(drawn, axis=1))).numpy()
    joint.drawn |= {f"noise {place}": each for place, each in enumerate(spread)}
    joint.check()
