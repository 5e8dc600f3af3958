"""How the talker handles the fields of `config.json`.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from dataclasses import replace

from transformers import Qwen2Config

from antiphon.pipelines.ming_tts import (
    HISTORY_LATENTS,
    LATENT_ROWS,
    LATENT_WIDTH,
    ROW_SAMPLES,
    SAMPLE_RATE_HZ,
    SPEAKER_WIDTH,
    STEP_LATENTS,
)
from antiphon_services.ming_tts.talker.flow_head import GUIDANCE, STEPS
from antiphon_services.stage.config_fields import LAYER_SIZES, OFF, PLAIN_ROPE, ConfigPart, names

MODEL = ConfigPart(
    "", computed=names("llm_config ditar_config aggregator_config audio_tokenizer_config")
)
LAYERS = ConfigPart(
    "llm_config",
    computed=LAYER_SIZES,
    # The language model head is not used.
    idle=names("tie_word_embeddings max_window_layers"),
    ropes=PLAIN_ROPE,
)
_BLOCKS = names("hidden_size depth num_heads mlp_ratio")
_PLAIN_BLOCKS = {"qk_norm": OFF, "pe_attn_head": (None,)}
_TRAINING = names("dropout cfg_dropout_prob")
_FLASH_BLOCKS = {**_PLAIN_BLOCKS, "in_channels": (None, LATENT_WIDTH)}
# Widths that are determined by the language model, and the choice of the attention kernel.
_FLASH_WIDTHS = names("llm_cond_dim llm_input_dim attn_backend")
FLOW = ConfigPart(
    "ditar_config",
    computed=_BLOCKS,
    only={
        **_PLAIN_BLOCKS,
        "patch_size": (STEP_LATENTS,),
        "history_patch_size": (HISTORY_LATENTS,),
    },
    idle=_TRAINING,
)
AGGREGATOR = ConfigPart("aggregator_config", computed=_BLOCKS, only=_PLAIN_BLOCKS, idle=_TRAINING)
AUDIO = ConfigPart(
    "audio_tokenizer_config",
    computed=names("enc_kwargs dec_kwargs"),
    only={"sample_rate": (SAMPLE_RATE_HZ,), "patch_size": (LATENT_ROWS,)},
    # The fields of audio understanding, and those that are only used for training.
    idle=names(
        "semantic_module_kwargs hifi_gan_disc_kwargs spec_disc_kwargs lambda_disc lambda_mel_loss "
        "lambda_adv lambda_feat_match_loss lambda_semantic init_method"
    ),
)
ENCODER = ConfigPart(
    "audio_tokenizer_config.enc_kwargs",
    computed=names("backbone"),
    only={
        "input_dim": (ROW_SAMPLES,),
        "hop_size": (ROW_SAMPLES,),
        "latent_dim": (LATENT_WIDTH,),
    },
)
ENCODER_LAYERS = ConfigPart(
    "audio_tokenizer_config.enc_kwargs.backbone", own=Qwen2Config, ropes=PLAIN_ROPE
)
PARTS = (MODEL, LAYERS, FLOW, AGGREGATOR, AUDIO, ENCODER, ENCODER_LAYERS)

FLASH_PARTS = (
    ConfigPart(
        "",
        computed=names("flowmodel aggregator"),
        only={
            "steps": (None, STEPS),
            "patch_size": (None, STEP_LATENTS),
            "history_patch_size": (None, HISTORY_LATENTS),
            "latent_dim": (None, LATENT_WIDTH),
            "cfg_strength": (None, GUIDANCE),
            "spk_dim": (None, SPEAKER_WIDTH),
        },
        # The layers are configured in `llm/config.json`. The number of concurrent requests is set
        # by `slots`.
        idle=names("llm_config audio_vae_path campplus_model max_conc"),
    ),
    ConfigPart(
        "flowmodel",
        computed=_BLOCKS,
        only=_FLASH_BLOCKS | {"spk_dim": (None,)},
        idle=_TRAINING | _FLASH_WIDTHS,
    ),
    ConfigPart("aggregator", computed=_BLOCKS, only=_FLASH_BLOCKS, idle=_TRAINING | _FLASH_WIDTHS),
)
"""The parts in the layout of Ming-flash-omni. The same applies to the two constants below."""
FLASH_LAYER_PARTS = (replace(LAYERS, path=""),)
FLASH_AUDIO_PARTS = tuple(
    replace(part, path=part.path.removeprefix(AUDIO.path).removeprefix("."))
    for part in (AUDIO, ENCODER, ENCODER_LAYERS)
)
