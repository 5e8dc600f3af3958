"""How the talker handles the fields of its configurations.

The classes used here are documented in `config_fields`.
"""

from __future__ import annotations

from antiphon.pipelines.mimo_audio import CODEBOOKS, GROUP_FRAMES, SAMPLE_RATE_HZ
from antiphon_services.stage.config_fields import LAYER_SIZES, OFF, PLAIN_ROPE, ConfigPart, names

LAYERS = ConfigPart(
    "",
    computed=LAYER_SIZES
    | names(
        "head_dim delay_pattern speech_vocab_size speech_zeroemb_idx input_full_attention "
        "input_local_dim input_local_layers local_attn_heads local_dim local_ffn_dim local_layers"
    ),
    only={
        "audio_channels": (len(CODEBOOKS),),
        "group_size": (GROUP_FRAMES,),
        "tie_word_embeddings": OFF,
    },
    # Sliding-window attention is disabled.
    idle=names("local_attn_dropout max_window_layers"),
    ropes=PLAIN_ROPE,
)
PARTS = (LAYERS,)

ENCODER = ConfigPart(
    "",
    computed=names(
        "d_model n_mels kernel_size stride_size avg_pooler encoder_layers encoder_attention_heads "
        "encoder_ffn_dim encoder_skip_layer_id encoder_attn_window_size encoder_causal "
        "nfft hop_length fmin fmax rope_theta"
    ),
    only={
        "activation_function": ("gelu",),
        "ln_type": ("LayerNorm",),
        "position_embedding_type": ("rope",),
        "rope_type": ("default",),
        "sampling_rate": (SAMPLE_RATE_HZ,),
        "scale_embedding": OFF,
    },
    # The language model only uses the first codebooks. The decoder belongs to another stage.
    idle=names(
        "codebook_size num_quantizers threshold_ema_dead_code max_audio_seconds window_size "
        "decoder_attention_heads decoder_attn_window_size decoder_causal decoder_ffn_dim "
        "decoder_kernel_size decoder_layers decoder_stride_size vocoder_attention_heads "
        "vocoder_attn_window_size vocoder_dim vocoder_intermediate_dim vocoder_num_layers "
        "vocoder_padding tie_word_embeddings"
    ),
)
ENCODER_PARTS = (ENCODER,)
"""The fields of the audio tokenizer's `config.json`."""
