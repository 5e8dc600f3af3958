from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from antiphon.deployment.schema import StageConfig
from antiphon_services.qwen3_omni.code2wav.vocoder import vocoder_of
from antiphon_services.vocoder.stage import VocoderTerms, vocoder_stage
from antiphon_services.vocoder.stream import Vocoder
from tests.unit.services.vocoder.vocoder_modules import CONFIGS, EDGES, build_module


def test_loaded_weights_are_freed_before_the_warm_up(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    kept: list[bool] = []

    def load() -> Vocoder:
        module = build_module(torch.float32, **CONFIGS["odd"])
        loaded = vocoder_of(module)
        weights = weakref.ref(module.pre_transformer.layers[0].mlp.gate_proj)

        def embed(codes: Tensor) -> Tensor:
            kept.append(weights() is not None)
            return loaded_embed(codes)

        loaded_embed = loaded.embed
        return replace(loaded, embed=embed)

    terms = VocoderTerms(EDGES, tmp_path / "config.json", 24_000, most_frames=100, steady=2)
    with torch.inference_mode():
        vocoder_stage(load, terms, tmp_path, StageConfig(slots=2))
    assert kept
    assert not any(kept)
