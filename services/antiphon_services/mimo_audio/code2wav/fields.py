"""How code2wav handles the fields of the configuration.

The classes used here are documented in `config_fields`.
"""

from __future__ import annotations

from antiphon.pipelines.mimo_audio import SAMPLE_RATE_HZ
from antiphon_services.stage.config_fields import OFF, ConfigPart, names

DECODER = ConfigPart(
    "",
    computed=names(
        "d_model n_mels avg_pooler decoder_attention_heads decoder_attn_window_size decoder_causal "
        "decoder_ffn_dim decoder_kernel_size decoder_layers decoder_stride_size nfft hop_length "
        "rope_theta vocoder_attention_heads vocoder_attn_window_size vocoder_dim "
        "vocoder_intermediate_dim vocoder_num_layers"
    ),
    only={
        "activation_function": ("gelu",),
        "ln_type": ("LayerNorm",),
        "position_embedding_type": ("rope",),
        "rope_type": ("default",),
        "sampling_rate": (SAMPLE_RATE_HZ,),
        "scale_embedding": OFF,
        "vocoder_padding": ("same",),
    },
    # Only the first codebooks are used, and their sizes are derived from the tensors. The encoder
    # belongs to another stage.
    idle=names(
        "codebook_size num_quantizers threshold_ema_dead_code max_audio_seconds window_size fmin "
        "fmax kernel_size stride_size encoder_layers encoder_attention_heads encoder_ffn_dim "
        "encoder_skip_layer_id encoder_attn_window_size encoder_causal tie_word_embeddings"
    ),
)
PARTS = (DECODER,)
