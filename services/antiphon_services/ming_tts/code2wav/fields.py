"""How code2wav handles the fields of `config.json`.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.pipelines.ming_tts import LATENT_ROWS, LATENT_WIDTH, ROW_SAMPLES, SAMPLE_RATE_HZ
from antiphon_services.stage.config_fields import PLAIN_ROPE, ConfigPart, names

AUDIO = ConfigPart(
    "audio_tokenizer_config",
    computed=names("dec_kwargs"),
    only={"sample_rate": (SAMPLE_RATE_HZ,), "patch_size": (LATENT_ROWS,)},
    # The fields of the encoder and of audio understanding, and those that are only used for
    # training.
    idle=names(
        "enc_kwargs semantic_module_kwargs hifi_gan_disc_kwargs spec_disc_kwargs lambda_disc "
        "lambda_mel_loss lambda_adv lambda_feat_match_loss lambda_semantic init_method"
    ),
)
DECODER = ConfigPart(
    "audio_tokenizer_config.dec_kwargs",
    computed=names("backbone"),
    only={"output_dim": (ROW_SAMPLES,), "latent_dim": (LATENT_WIDTH,)},
)
LAYERS = ConfigPart(
    "audio_tokenizer_config.dec_kwargs.backbone",
    computed=names(
        "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "hidden_act rms_norm_eps max_position_embeddings sliding_window use_sliding_window"
    ),
    # In the vendor's version of transformers, the window applies to every layer.
    idle=names("vocab_size tie_word_embeddings max_window_layers"),
    ropes=PLAIN_ROPE,
)
PARTS = (AUDIO, DECODER, LAYERS)
FLASH_PARTS = tuple(
    replace(part, path=part.path.removeprefix(AUDIO.path).removeprefix(".")) for part in PARTS
)
"""The parts of `vae/config.json` in the layout of Ming-flash-omni."""
