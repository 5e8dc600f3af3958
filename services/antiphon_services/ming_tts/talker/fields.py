"""What the talker does with each field of `config.json`; see `antiphon_services.config_fields`."""

from __future__ import annotations

from transformers import Qwen2Config

from antiphon.pipelines.ming_tts import (
    HISTORY_LATENTS,
    LATENT_ROWS,
    LATENT_WIDTH,
    ROW_SAMPLES,
    SAMPLE_RATE_HZ,
    STEP_LATENTS,
)
from antiphon_services.config_fields import OFF, PLAIN_ROPE, ConfigPart, names

MODEL = ConfigPart(
    "", computed=names("llm_config ditar_config aggregator_config audio_tokenizer_config")
)
LAYERS = ConfigPart(
    "llm_config",
    computed=names(
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
        "num_key_value_heads hidden_act rms_norm_eps max_position_embeddings"
    ),
    # The head that writes text is not used.
    idle=names("tie_word_embeddings max_window_layers"),
    ropes=PLAIN_ROPE,
)
_BLOCKS = names("hidden_size depth num_heads mlp_ratio")
_PLAIN_BLOCKS = {"qk_norm": OFF, "pe_attn_head": (None,)}
_TRAINING = names("dropout cfg_dropout_prob")
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
    # What understands audio, and what is for training.
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
