"""The fields of `speech_tokenizer/config.json` that code2wav supports."""

from __future__ import annotations

from antiphon.pipelines.qwen3_tts import SAMPLE_RATE_HZ
from antiphon_services.stage.config_fields import STATIC_ROPES, ConfigPart, names

CODEC = ConfigPart(
    "",
    computed=names("decoder_config"),
    only={"output_sample_rate": (SAMPLE_RATE_HZ,)},
    # The encoder is used by the talker. The number of samples per frame follows from the decoder's
    # rates.
    idle=names(
        "encoder_config encode_downsample_rate encoder_valid_num_quantizers input_sample_rate "
        "decode_upsample_rate"
    ),
)
DECODER = ConfigPart(
    "decoder_config",
    computed=names(
        "codebook_size codebook_dim hidden_size latent_dim max_position_embeddings "
        "num_attention_heads num_key_value_heads head_dim attention_bias sliding_window "
        "intermediate_size hidden_act rms_norm_eps num_hidden_layers num_quantizers "
        "upsample_rates upsampling_ratios decoder_dim"
    ),
    idle=names(
        "layer_scale_initial_scale tie_word_embeddings num_semantic_quantizers "
        "semantic_codebook_size vector_quantization_hidden_dimension"
    ),
    ropes=STATIC_ROPES,
)
PARTS = (CODEC, DECODER)
