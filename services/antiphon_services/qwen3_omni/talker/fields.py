"""The fields of `config.json` that the talker supports.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from antiphon_services.stage.config_fields import (
    LAYER_SIZES,
    NO_WINDOW,
    OFF,
    STATIC_ROPES,
    ConfigPart,
    names,
)

TALKER = ConfigPart(
    "talker_config",
    computed=names(
        "code_predictor_config text_config num_code_groups thinker_hidden_size codec_eos_token_id "
        "codec_nothink_id codec_think_bos_id codec_think_eos_id codec_pad_id codec_bos_id "
        "speaker_id accept_hidden_layer"
    ),
    only={"tie_word_embeddings": OFF},
    # Placeholders and positions are used by the thinker.
    idle=names(
        "audio_token_id image_token_id video_token_id vision_start_token_id "
        "position_id_per_seconds audio_start_token_id audio_end_token_id vision_end_token_id "
        "user_token_id seconds_per_chunk spatial_merge_size"
    ),
)
TEXT = ConfigPart(
    "talker_config.text_config",
    computed=LAYER_SIZES
    | names(
        "head_dim attention_bias decoder_sparse_step moe_intermediate_size num_experts_per_tok "
        "num_local_experts num_experts norm_topk_prob mlp_only_layers "
        "shared_expert_intermediate_size"
    ),
    only={"tie_word_embeddings": OFF},
    ropes=STATIC_ROPES,
)
PREDICTOR = ConfigPart(
    "talker_config.code_predictor_config",
    computed=names(
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
        "num_key_value_heads head_dim hidden_act rms_norm_eps attention_bias num_code_groups"
    ),
    # Hugging Face's predictor fails if a layer has a window.
    only={"tie_word_embeddings": OFF, "layer_types": NO_WINDOW},
    # Each of the predictor's sequences is one frame.
    idle=names("max_position_embeddings max_window_layers"),
    ropes=STATIC_ROPES,
)
PARTS = (TALKER, TEXT, PREDICTOR)
