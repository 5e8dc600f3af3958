"""The configuration fields that the talker supports.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from transformers import MimiConfig

from antiphon.pipelines.qwen3_tts import SAMPLE_RATE_HZ
from antiphon_services.qwen3_tts.talker.speaker import MEL_BINS
from antiphon_services.stage.config_fields import NO_WINDOW, OFF, PLAIN_ROPE, ConfigPart, names

WHOLE = ConfigPart(
    "",
    computed=names(
        "talker_config speaker_encoder_config tts_model_size tts_model_type im_start_token_id "
        "im_end_token_id tts_pad_token_id tts_bos_token_id tts_eos_token_id"
    ),
    # The codec type is validated when the codec's configuration is read.
    idle=names("assistant_token_id tokenizer_type tie_word_embeddings"),
)
_LAYERS = names(
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim hidden_act rms_norm_eps attention_bias num_code_groups"
)
TALKER = ConfigPart(
    "talker_config",
    computed=_LAYERS
    | names(
        "max_position_embeddings text_hidden_size text_vocab_size code_predictor_config "
        "codec_eos_token_id codec_think_id codec_nothink_id codec_think_bos_id "
        "codec_think_eos_id codec_pad_id codec_bos_id codec_language_id spk_id spk_is_dialect"
    ),
    only={"tie_word_embeddings": OFF},
    idle=names("position_id_per_seconds seconds_per_chunk max_window_layers"),
    ropes=PLAIN_ROPE,
)
PREDICTOR = ConfigPart(
    "talker_config.code_predictor_config",
    computed=_LAYERS,
    only={"tie_word_embeddings": OFF, "layer_types": NO_WINDOW},
    # Each of the predictor's sequences is one frame.
    idle=names("max_position_embeddings max_window_layers"),
    ropes=PLAIN_ROPE,
)
SPEAKER = ConfigPart(
    "speaker_encoder_config",
    computed=names(
        "enc_attention_channels enc_channels enc_dilations enc_dim enc_kernel_sizes "
        "enc_res2net_scale enc_se_channels"
    ),
    only={"mel_dim": (MEL_BINS,), "sample_rate": (SAMPLE_RATE_HZ,)},
    idle=names("tie_word_embeddings"),
)
PARTS = (WHOLE, TALKER, PREDICTOR, SPEAKER)

CODEC = ConfigPart(
    "",
    computed=names("encoder_config encode_downsample_rate encoder_valid_num_quantizers"),
    only={"input_sample_rate": (SAMPLE_RATE_HZ,)},
    idle=names("decoder_config decode_upsample_rate output_sample_rate"),
)
ENCODER = ConfigPart("encoder_config", idle=names("frame_rate tie_word_embeddings"), own=MimiConfig)
CODEC_PARTS = (CODEC, ENCODER)
"""The fields of `speech_tokenizer/config.json`, for checkpoints that can clone voices."""
