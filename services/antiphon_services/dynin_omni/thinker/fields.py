"""The fields of `config.json` that the thinker supports.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from antiphon.pipelines.dynin_omni import IMAGE_ENTRIES
from antiphon_services.stage.config_fields import OFF, ConfigPart, names

LAYERS = ConfigPart(
    "",
    computed=names(
        "d_model embedding_size mask_token_id max_sequence_length mlp_hidden_size n_heads "
        "n_kv_heads n_layers num_vq_tokens rms_norm_eps rope_theta vocab_size"
    ),
    only={
        "activation_type": ("silu",),
        "alibi": OFF,
        "attention_layer_norm": OFF,
        "bias_for_layer_norm": OFF,
        "block_group_size": (None, 1),
        "block_type": ("llama",),
        "codebook_size": (None, IMAGE_ENTRIES),
        "include_bias": OFF,
        "include_qkv_bias": OFF,
        "input_emb_norm": OFF,
        "layer_norm_type": ("rms",),
        "layer_norm_with_affine": (None, True),
        "multi_query_attention": OFF,
        "num_new_special_tokens": (None, 0),
        "rope": (True,),
        "rope_full_precision": (None, True),
        "scale_logits": OFF,
        "vid_merge": OFF,
        "weight_tying": OFF,
    },
    # The tokenizer defines the first image token. The head is never tied.
    idle=names(
        "alibi_bias_max attention_layer_norm_with_affine embedding_dropout flash_attention "
        "gradient_checkpointing init_cutoff_factor init_device init_fn llm_model_path "
        "llm_vocab_size mlp_ratio new_vocab_size precision residual_dropout tie_word_embeddings "
        "vid_merge_stride w_clip_vit"
    ),
)
PARTS = (LAYERS,)
