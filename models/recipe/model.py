"""The sizes of the checkpoint, its configuration, and its modules before the training."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from antiphon_testkit.qwen3_omni.tiny_config import CODEC_EOS, FIRST_VOICE, make_config
from antiphon_testkit.qwen3_omni.tiny_shape import TinyShape
from antiphon_testkit.tiny_tokenizer import TinyVocabulary
from models.recipe.codes import ENTRIES, GROUPS, VOICES

SHAPE = TinyShape(
    hidden=128,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=32,
    experts=4,
    experts_per_token=2,
    expert_intermediate=96,
    accept_layer=2,
    audio_hidden=160,
    audio_layers=3,
    audio_heads=4,
    talker_hidden=128,
    talker_layers=4,
    talker_heads=4,
    talker_kv_heads=2,
    talker_head_dim=32,
    talker_experts=4,
    talker_experts_per_token=2,
    talker_expert_intermediate=64,
    code_groups=GROUPS,
    codebook_size=ENTRIES,
    predictor_layers=2,
    predictor_heads=4,
    predictor_kv_heads=2,
    predictor_head_dim=32,
    decoder_hidden=192,
    decoder_layers=2,
    decoder_heads=4,
    decoder_kv_heads=4,
    decoder_window=16,
    decoder_dim=128,
)
SHARED_EXPERT = 384
PREDICTOR_INTERMEDIATE = 512
EOS = ENTRIES + CODEC_EOS
TOWER_CHANNELS, TOWER_INTERMEDIATE = 8, 480
INITIAL_SCALE = 0.02


def make_configuration(vocabulary: TinyVocabulary) -> Any:
    """Return the configuration of the complete model."""
    config: Any = make_config(SHAPE, vocabulary)
    tower = config.thinker_config.audio_config
    tower.downsample_hidden_size, tower.encoder_ffn_dim = TOWER_CHANNELS, TOWER_INTERMEDIATE
    talker = config.talker_config
    talker.text_config.shared_expert_intermediate_size = SHARED_EXPERT
    talker.code_predictor_config.intermediate_size = PREDICTOR_INTERMEDIATE
    talker.speaker_id = {name: ENTRIES + FIRST_VOICE + at for at, name in enumerate(VOICES)}
    return config


def make_part(name: str, config: Any, seed: int) -> Any:
    """Return a part with new weights: "thinker", its "tower", "talker" or "code2wav"."""
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

    torch.manual_seed(seed)
    classes = {
        "thinker": modeling.Qwen3OmniMoeThinkerForConditionalGeneration,
        "tower": modeling.Qwen3OmniMoeAudioEncoder,
        "talker": modeling.Qwen3OmniMoeTalkerForConditionalGeneration,
        "code2wav": modeling.Qwen3OmniMoeCode2Wav,
    }
    thinker = config.thinker_config
    sizes = thinker.audio_config if name == "tower" else getattr(config, f"{name}_config")
    module: Any = classes[name](sizes)
    _fill_forgotten(module)
    return module


@torch.no_grad()
def _fill_forgotten(module: torch.nn.Module) -> None:
    """Initialize the routers and experts of a talker, which transformers 5.19 does not
    initialize.
    """
    for name, parameter in module.named_parameters():
        if name.endswith(("mlp.gate.weight", "experts.gate_up_proj", "experts.down_proj")):
            parameter.normal_(0.0, INITIAL_SCALE)


def describe_shape() -> dict[str, Any]:
    """Return the sizes for the model card."""
    return dataclasses.asdict(SHAPE)
