"""Random weights of the benchmarks for GPUs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerForConditionalGeneration,
)

from antiphon_services.qwen3_omni.talker.load import DEFAULT_SAMPLING
from benchmarks.gpu.loaded import Stages
from benchmarks.gpu.scale import EAGER
from benchmarks.gpu.weights import end_never, random_module, sizes_of, whole_config

HIDDEN_ROWS = 1000


def test_speech_does_not_end_by_itself_when_it_is_sampled() -> None:
    """The id that ends speech is never among the `top_k` that are drawn from."""
    config = whole_config(sizes_of(torch.device("cpu")))
    talker: Any = random_module(
        Qwen3OmniMoeTalkerForConditionalGeneration,
        config.talker_config,
        dtype=torch.float32,
        device="cpu",
    )
    end_never(talker, config.talker_config.codec_eos_token_id)
    rows = torch.randn(
        HIDDEN_ROWS,
        config.talker_config.text_config.hidden_size,
        generator=torch.Generator().manual_seed(0),
    )
    logits = talker.codec_head(talker.model.norm(rows))
    codes = logits[:, : config.talker_config.code_predictor_config.vocab_size]
    stop = logits[:, config.talker_config.codec_eos_token_id, None]

    likelier = (codes > stop).sum(1)

    top_k = DEFAULT_SAMPLING.top_k
    assert 0 < top_k <= int(likelier.min())


@pytest.fixture
def _no_automatic_collection() -> Iterator[None]:
    """Cycles are freed by an explicit call alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_automatic_collection")
def test_a_stage_leaves_no_weights_for_the_next_one(tmp_path: Path) -> None:
    """Two thinkers of 61 GB do not fit a device together."""
    stages = Stages(torch.device("cpu"), tmp_path)
    stages.write()
    others = {id(each) for each in parameters()}
    stage = stages.load("talker", EAGER, slots=1, context=64)
    weights = [weakref.ref(each) for each in parameters() if id(each) not in others]
    assert weights
    # A graph and what replays it refer to each other.
    circle: list[object] = [stage]
    circle.append(circle)
    del stage, circle
    assert any(each() is not None for each in weights)

    stages.forget()

    assert all(each() is None for each in weights)


def parameters() -> list[torch.nn.Parameter]:
    """Those of all modules in this process."""
    return [each for each in gc.get_objects() if type(each) is torch.nn.Parameter]
