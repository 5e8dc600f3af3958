"""The fields of `config.json` that the talker supports.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from antiphon_services.stage.config_fields import LAYER_SIZES, OFF, STATIC_ROPES, ConfigPart, names

PARTS = (
    ConfigPart(
        "talker_config",
        computed=LAYER_SIZES
        | names(
            "embedding_size head_dim tts_text_start_token_id tts_text_end_token_id "
            "tts_text_pad_token_id tts_codec_start_token_id tts_codec_end_token_id "
            "tts_codec_pad_token_id tts_codec_mask_token_id"
        ),
        only={"tie_word_embeddings": OFF},
        # Placeholders and positions are used by the thinker.
        idle=names(
            "audio_token_index image_token_index video_token_index vision_start_token_id "
            "vision_end_token_id audio_start_token_id audio_end_token_id vision_token_id "
            "audio_token_id image_token_id video_token_id position_id_per_seconds "
            "seconds_per_chunk spatial_merge_size"
        ),
        ropes=STATIC_ROPES,
        window=True,
    ),
)
