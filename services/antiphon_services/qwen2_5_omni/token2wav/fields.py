"""The fields of `config.json` that token2wav supports.

The classes used here are documented in `stage/config_fields.py`.
"""

from __future__ import annotations

from antiphon_services.stage.config_fields import PLAIN_ROPE, ConfigPart, names

FLOW = ConfigPart(
    "token2wav_config.dit_config",
    computed=names(
        "hidden_size num_hidden_layers num_attention_heads ff_mult emb_dim head_dim "
        "max_position_embeddings block_size look_ahead_layers look_backward_layers repeats "
        "num_embeds mel_dim enc_emb_dim enc_dim enc_channels enc_kernel_sizes enc_dilations "
        "enc_attention_channels enc_res2net_scale enc_se_channels"
    ),
    # Alternative names for sizes in the released file, and training settings.
    idle=names(
        "depth dim heads dropout enc_global_context enc_lin_neurons long_skip_connection "
        "tie_word_embeddings"
    ),
    ropes=PLAIN_ROPE,
)
VOCODER = ConfigPart(
    "token2wav_config.bigvgan_config",
    computed=names(
        "mel_dim upsample_initial_channel resblock_kernel_sizes resblock_dilation_sizes "
        "upsample_rates upsample_kernel_sizes"
    ),
    idle=names("use_bias_at_final tie_word_embeddings"),
)
PARTS = (FLOW, VOCODER)
