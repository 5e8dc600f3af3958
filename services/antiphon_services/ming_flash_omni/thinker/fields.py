"""The fields of `config.json` that the thinker supports.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from antiphon_services.stage.config_fields import LAYER_SIZES, ConfigPart, names

WHOLE = ConfigPart(
    "",
    computed=names("audio_config llm_config mlp_depth vision_config"),
)
TEXT = ConfigPart(
    "llm_config",
    computed=LAYER_SIZES
    | names(
        "first_k_dense_replace head_dim image_patch_token moe_intermediate_size n_group "
        "num_experts num_experts_per_tok num_shared_experts routed_scaling_factor topk_group"
    ),
    only={
        # The vendor's code doesn't read this field, but uses the same value.
        "moe_router_topk_scaling_factor": (2.5,),
        "norm_head": (False,),
        "norm_softmax": (False,),
        "norm_topk_prob": (True,),
        "partial_rotary_factor": (0.5,),
        "router_type": ("MultiRouter",),
        "tie_word_embeddings": (False,),
        "use_bias": (False,),
        "use_expert_bias": (True,),
        "use_qk_norm": (True,),
        "use_qkv_bias": (False,),
    },
    idle=names(
        "embedding_dropout image_start_token output_dropout pretraining_tp "
        "use_interleaved_frame_timestamp video_patch_token video_start_token"
    ),
    ropes=("video_rope",),
)
AUDIO = ConfigPart(
    "audio_config",
    computed=names("ds_kernel_size ds_stride norm_query_embeds whisper_encoder_config"),
    idle=names("tie_word_embeddings"),
)
ENCODER = ConfigPart(
    "audio_config.whisper_encoder_config", computed=names("n_ctx n_head n_layer n_mels n_state")
)
VISION = ConfigPart(
    "vision_config",
    computed=names(
        "depth hidden_act hidden_size in_channels intermediate_size num_heads "
        "num_position_embeddings out_hidden_size patch_size spatial_merge_size temporal_patch_size"
    ),
    # The vendor's code doesn't use the features of these layers.
    idle=names("deepstack_visual_indexes"),
)
PARTS = (WHOLE, TEXT, AUDIO, ENCODER, VISION)
