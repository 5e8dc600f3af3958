"""The fields of `config.json` that code2wav supports.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from antiphon_services.stage.config_fields import STATIC_ROPES, ConfigPart, names

PARTS = (
    ConfigPart(
        "code2wav_config",
        computed=names(
            "codebook_size hidden_size max_position_embeddings num_attention_heads "
            "num_key_value_heads head_dim attention_bias sliding_window intermediate_size "
            "hidden_act rms_norm_eps num_hidden_layers num_quantizers upsample_rates "
            "upsampling_ratios decoder_dim"
        ),
        # Used by other codecs, or only to initialize weights.
        idle=names(
            "layer_scale_initial_scale tie_word_embeddings codebook_dim num_semantic_quantizers "
            "semantic_codebook_size vector_quantization_hidden_dimension"
        ),
        ropes=STATIC_ROPES,
    ),
)
