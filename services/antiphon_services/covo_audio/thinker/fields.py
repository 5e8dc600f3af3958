"""The fields of `config.json` that the thinker supports.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from transformers import WhisperConfig

from antiphon_services.stage.config_fields import LAYER_SIZES, PLAIN_ROPE, ConfigPart, names

WHOLE = ConfigPart(
    "",
    computed=names("adapter_downsample audio_token_index encoder_config llm_config"),
    # The embeddings are never tied.
    idle=names("_encoder_config_type _llm_config_type whisper_feats_dim tie_word_embeddings"),
)
TEXT = ConfigPart(
    "llm_config",
    computed=LAYER_SIZES,
    only={"use_mrope": (False, None)},
    idle=names("tie_word_embeddings"),
    ropes=PLAIN_ROPE,
    window=True,
)
ENCODER = ConfigPart(
    "encoder_config",
    idle=names("tie_word_embeddings num_hidden_layers"),
    own=WhisperConfig,
)
PARTS = (WHOLE, TEXT, ENCODER)
