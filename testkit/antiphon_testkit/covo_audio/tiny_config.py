"""The configuration of a tiny Covo-Audio checkpoint, and the token2wav configuration for the
vendor's code, which is not part of any checkpoint.
"""

from __future__ import annotations

from typing import Any

from antiphon_testkit.covo_audio.tiny_shape import CovoShape
from antiphon_testkit.tiny_config import decoder_sizes

CODE_ENTRIES = 16_384
DOWNSAMPLING = 8
ADAPTER_INNER = 2048
MEL_BINS = 128
ENCODER_POSITIONS = 1500
UPSAMPLING = 4
DILATIONS = (1, 3, 5)

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begofcAUDIO|>",
    "<|cAUDIO|>",
    "<|endofcAUDIO|>",
)


def model_config(shape: CovoShape, text_ids: int, end: int) -> dict[str, Any]:
    """Return the content of `config.json`. IDs from `text_ids` onwards are codes."""
    return {
        "adapter_downsample": DOWNSAMPLING,
        "architectures": ["CovoAudioForCausalLM"],
        "audio_token_index": text_ids,
        "dtype": "bfloat16",
        "encoder_config": {
            "activation_function": "gelu",
            "d_model": shape.encoder_hidden,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 32,
            "decoder_layers": 1,
            "encoder_attention_heads": shape.encoder_heads,
            "encoder_ffn_dim": 2 * shape.encoder_hidden,
            "encoder_layers": shape.encoder_layers,
            "max_source_positions": ENCODER_POSITIONS,
            "model_type": "whisper",
            "num_mel_bins": MEL_BINS,
            "scale_embedding": False,
            "vocab_size": 100,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        "llm_config": {
            **decoder_sizes(shape),
            "attention_dropout": 0.0,
            "bos_token_id": end,
            "eos_token_id": end,
            "hidden_act": "silu",
            "max_position_embeddings": 131_072,
            "model_type": "qwen2",
            "rms_norm_eps": 1e-06,
            "rope_theta": 1_000_000.0,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "vocab_size": text_ids + CODE_ENTRIES,
        },
        "model_type": "covo_audio",
        "whisper_feats_dim": shape.encoder_hidden,
    }


def token2wav_config(shape: CovoShape) -> dict[str, Any]:
    """Return the section `model` of `token2wav/config.json` in the vendor's repository."""
    return {
        "type": "Token2WavDecoder",
        "token2latent": {
            "upsample_factor": UPSAMPLING,
            "token_vocab_size": CODE_ENTRIES,
            "token_input_dim": shape.token_width,
            "z_dim": shape.latent,
            "spkr_embed_dim": shape.speaker,
            "sigma": 1e-05,
            "transformer": {
                "num_layers": shape.flow_layers,
                "hidden_size": shape.flow_hidden,
                "ffn_hidden_size": shape.flow_inner,
                "num_heads": shape.flow_heads,
                "modulation": True,
                "alibi_bias": False,
                "rotary_bias": True,
                "qk_norm": False,
                "max_position_embeddings": 4096,
                "attn_dropout": 0.0,
                "dropout": 0.1,
            },
        },
        "wav_input_sr": 24_000,
        "wavegan": {
            "type": "BigVGANFlowVAE",
            "upsample_rates": list(shape.upsampling),
            "upsample_kernel_sizes": [2 * rate for rate in shape.upsampling],
            "upsample_initial_channel": shape.vocoder_hidden,
            "resblock": "1",
            "resblock_kernel_sizes": list(shape.kernels),
            "resblock_dilation_sizes": [list(DILATIONS) for _ in shape.kernels],
            "downsample_rates": list(reversed(shape.upsampling)),
            "activation": "snakebeta",
            "snake_logscale": True,
            "latent_dim": shape.latent,
            "use_flow": True,
            "use_vae": True,
            "causal": True,
        },
    }
