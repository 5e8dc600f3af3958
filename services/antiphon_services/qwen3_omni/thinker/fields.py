"""The fields of `config.json` that the thinker supports.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon_services.qwen3_omni.config import AudioTowerConfig, VisionTowerConfig
from antiphon_services.stage.config_fields import (
    LAYER_SIZES,
    NONE_LISTED,
    OFF,
    PLAIN_ROPE,
    STATIC_ROPES,
    ConfigPart,
    names,
)

WHOLE = ConfigPart(
    "",
    computed=names(
        "thinker_config talker_config code2wav_config enable_audio_output im_start_token_id "
        "im_end_token_id user_token_id assistant_token_id tts_pad_token_id tts_bos_token_id "
        "tts_eos_token_id"
    ),
    idle=names("system_token_id tie_word_embeddings"),
)
THINKER = ConfigPart(
    "thinker_config",
    computed=names(
        "audio_config vision_config text_config audio_token_id image_token_id video_token_id "
        "position_id_per_seconds"
    ),
    only={"tie_word_embeddings": OFF},
    # All other fields are for the audio tracks of videos, which are not supported.
    idle=names(
        "audio_start_token_id audio_end_token_id vision_start_token_id vision_end_token_id "
        "user_token_id seconds_per_chunk"
    ),
)
TEXT = ConfigPart(
    "thinker_config.text_config",
    computed=LAYER_SIZES
    | names(
        "head_dim attention_bias decoder_sparse_step moe_intermediate_size num_experts_per_tok "
        "num_experts norm_topk_prob mlp_only_layers"
    ),
    only={"shared_expert_intermediate_size": (None, 0), "use_qk_norm": (None, True)},
    # Whether the head is tied is determined by the thinker's own field.
    idle=names("tie_word_embeddings"),
    ropes=STATIC_ROPES,
)
AUDIO = ConfigPart(
    "thinker_config.audio_config",
    idle=names("tie_word_embeddings"),
    own=AudioTowerConfig,
)
VISION = ConfigPart(
    "thinker_config.vision_config",
    idle=names(
        "image_size apply_vit_abs_pos_embed in_chans spatial_patch_size tokens_per_second "
        "tie_word_embeddings"
    ),
    own=VisionTowerConfig,
)
PARTS = (WHOLE, THINKER, TEXT, AUDIO, VISION)

# Fields that vLLM's model treats differently from Hugging Face's, or for which the two haven't been
# compared.
_VLLM_TEXT = replace(
    TEXT,
    computed=TEXT.computed - names("attention_bias decoder_sparse_step hidden_act mlp_only_layers"),
    only={
        **TEXT.only,
        "attention_bias": OFF,
        "decoder_sparse_step": (1,),
        "hidden_act": ("silu",),
        "mlp_only_layers": NONE_LISTED,
    },
    ropes=PLAIN_ROPE,
)
VLLM_PARTS = (WHOLE, THINKER, _VLLM_TEXT, AUDIO, VISION)
