"""The configuration files of a tiny MiMo-Audio checkpoint."""

from __future__ import annotations

from typing import Any

from antiphon_testkit.mimo_audio.tiny_shape import MimoShape

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

SPEECH_MARKS = (
    "<|sosp|>",
    "<|eosp|>",
    "<|empty|>",
    "<|Human|>",
    "<|SpeechLM|>",
    "<|sostm|>",
    "<|eostm|>",
    "<|eot|>",
)
"""The vendor's code adds any of these that are missing from the tokenizer's files, in this
order.
"""

GROUP, CHANNELS = 4, 8
EMPTY_CODES = (1024, 1024, 128, 128, 128, 128, 128, 128)
MEL_BINS = 128
CODEBOOK_SIZES = (1024, 1024, *[128] * 18)
SKIP_LAYER = 3
POOLED = 2
KERNEL, STRIDE = 3, 2
FFT, HOP = 960, 240


def model_config(shape: MimoShape, vocabulary: int, end: int) -> dict[str, Any]:
    """Return the content of the language model's `config.json`."""
    return {
        "architectures": ["MiMoAudioModel"],
        "attention_dropout": 0.0,
        "audio_channels": CHANNELS,
        "delay_pattern": "-".join(str(each) for each in range(CHANNELS)),
        "eos_token_id": end,
        "group_size": GROUP,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "input_full_attention": True,
        "input_local_dim": shape.group_hidden,
        "input_local_layers": shape.group_layers,
        "intermediate_size": shape.intermediate,
        "local_attn_dropout": 0.1,
        "local_attn_heads": shape.local_heads,
        "local_dim": shape.local_hidden,
        "local_ffn_dim": shape.local_intermediate,
        "local_layers": shape.local_layers,
        "max_position_embeddings": 8192,
        "max_window_layers": 28,
        "model_type": "qwen2",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 640000,
        "speech_vocab_size": "-".join(str(each + 1) for each in EMPTY_CODES),
        "speech_zeroemb_idx": "-".join(str(each) for each in EMPTY_CODES),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocabulary,
    }


def codec_config(shape: MimoShape) -> dict[str, Any]:
    """Return the content of the audio tokenizer's `config.json`."""
    return {
        "activation_function": "gelu",
        "architectures": ["MiMoAudioTokenizer"],
        "avg_pooler": POOLED,
        "codebook_size": list(CODEBOOK_SIZES[: shape.quantizers]),
        "d_model": shape.codec_hidden,
        "decoder_attention_heads": shape.codec_heads,
        "decoder_attn_window_size": [-1, -1],
        "decoder_causal": True,
        "decoder_ffn_dim": shape.codec_intermediate,
        "decoder_kernel_size": KERNEL,
        "decoder_layers": shape.decoder_layers,
        "decoder_stride_size": STRIDE,
        "encoder_attention_heads": shape.codec_heads,
        "encoder_attn_window_size": [-1, -1],
        "encoder_causal": False,
        "encoder_ffn_dim": shape.codec_intermediate,
        "encoder_layers": shape.encoder_layers,
        "encoder_skip_layer_id": SKIP_LAYER,
        "fmax": None,
        "fmin": 0,
        "hop_length": HOP,
        "kernel_size": KERNEL,
        "ln_type": "LayerNorm",
        "max_audio_seconds": 1800,
        "model_type": "mimo_audio_tokenizer",
        "n_mels": MEL_BINS,
        "nfft": FFT,
        "num_quantizers": shape.quantizers,
        "position_embedding_type": "rope",
        "rope_theta": 10000,
        "rope_type": "default",
        "sampling_rate": 24000,
        "scale_embedding": False,
        "stride_size": STRIDE,
        "threshold_ema_dead_code": 2,
        "torch_dtype": "float32",
        "vocoder_attention_heads": shape.vocoder_heads,
        "vocoder_attn_window_size": [40, 10],
        "vocoder_dim": shape.vocoder_hidden,
        "vocoder_intermediate_dim": shape.vocoder_intermediate,
        "vocoder_num_layers": shape.vocoder_layers,
        "vocoder_padding": "same",
        "window_size": FFT,
    }
