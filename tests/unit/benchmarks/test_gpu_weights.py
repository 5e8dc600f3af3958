"""Random weights of the benchmarks for GPUs."""

from __future__ import annotations

import torch

from antiphon_services.qwen3_omni.talker.load import DEFAULT_SAMPLING
from benchmarks.gpu.weights import random_talker, sizes_of, whole_config

HIDDEN_ROWS = 1000


def test_speech_does_not_end_by_itself_when_it_is_sampled() -> None:
    """The id that ends speech is never among the `top_k` that are drawn from."""
    config = whole_config(sizes_of(torch.device("cpu")))
    talker = random_talker(config, torch.float32, torch.device("cpu"))
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
