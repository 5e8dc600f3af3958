"""The fields of `config.json` that the thinker supports.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from dataclasses import replace

from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import (
    Qwen2_5OmniAudioEncoderConfig,
    Qwen2_5OmniVisionEncoderConfig,
)

from antiphon_services.stage.config_fields import (
    LAYER_SIZES,
    OFF,
    PLAIN_ROPE,
    STATIC_ROPES,
    ConfigPart,
    names,
)

WHOLE = ConfigPart(
    "",
    computed=names("thinker_config talker_config token2wav_config"),
    # Whether there is a talker is determined by the weights.
    idle=names("enable_audio_output enable_talker tie_word_embeddings"),
)
THINKER = ConfigPart(
    "thinker_config",
    computed=names(
        "audio_config vision_config text_config audio_token_index image_token_index "
        "video_token_index audio_token_id image_token_id video_token_id position_id_per_seconds"
    ),
    only={"tie_word_embeddings": OFF},
    # All other fields are for the audio tracks of videos, which are not supported.
    idle=names(
        "audio_start_token_id audio_end_token_id vision_start_token_id vision_end_token_id "
        "vision_token_id user_token_id seconds_per_chunk"
    ),
)
TEXT = ConfigPart(
    "thinker_config.text_config",
    computed=LAYER_SIZES,
    # Whether the head is tied is determined by the thinker's own field.
    idle=names("tie_word_embeddings"),
    ropes=STATIC_ROPES,
    window=True,
)
AUDIO = ConfigPart(
    "thinker_config.audio_config",
    idle=names("num_hidden_layers tie_word_embeddings"),
    own=Qwen2_5OmniAudioEncoderConfig,
)
VISION = ConfigPart(
    "thinker_config.vision_config",
    idle=names("embed_dim in_chans spatial_patch_size tokens_per_second tie_word_embeddings"),
    own=Qwen2_5OmniVisionEncoderConfig,
)
PARTS = (WHOLE, THINKER, TEXT, AUDIO, VISION)

# Fields that vLLM's model treats differently from Hugging Face's, or for which the two haven't been
# compared.
_VLLM_TEXT = replace(
    TEXT,
    computed=TEXT.computed - {"hidden_act"},
    only={"hidden_act": ("silu",)},
    ropes=PLAIN_ROPE,
)
VLLM_PARTS = (WHOLE, THINKER, _VLLM_TEXT, AUDIO, VISION)
