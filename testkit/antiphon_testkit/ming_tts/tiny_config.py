"""The `config.json` of a tiny Ming TTS checkpoint."""

from __future__ import annotations

from typing import Any

from antiphon.pipelines.ming_tts import (
    ARCHITECTURE,
    HISTORY_LATENTS,
    LATENT_ROWS,
    LATENT_WIDTH,
    ROW_SAMPLES,
    SAMPLE_RATE_HZ,
    STEP_LATENTS,
)
from antiphon_testkit.ming_tts.tensor_shapes import MLP_RATIO, VAE_VOCABULARY
from antiphon_testkit.ming_tts.tiny_shape import MingShape

SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<text_eos>", "<end_of_audio>", "<audioPatch>", "<audio>", "</audio>"),
)

POSITIONS = 4096
WINDOW = 24
"""The attention window of the audio decoder in rows. There are 50 rows per second."""


def model_config(shape: MingShape, vocabulary: int) -> dict[str, Any]:
    """Return the configuration, with all keys that inference reads from a released one."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "dense",
        "torch_dtype": "bfloat16",
        "llm_config": {
            **_qwen2_config(shape.hidden, shape.intermediate, shape.layers, vocabulary),
            "architectures": ["Qwen2ForCausalLM"],
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
        },
        "ditar_config": {
            "patch_size": STEP_LATENTS,
            "history_patch_size": HISTORY_LATENTS,
            "hidden_size": shape.flow_width,
            "depth": shape.flow_layers,
            "num_heads": shape.flow_heads,
            "mlp_ratio": MLP_RATIO,
        },
        "aggregator_config": {
            "hidden_size": shape.aggregator_width,
            "depth": shape.aggregator_layers,
            "num_heads": shape.aggregator_heads,
            "mlp_ratio": MLP_RATIO,
        },
        "audio_tokenizer_config": {
            "sample_rate": SAMPLE_RATE_HZ,
            "patch_size": LATENT_ROWS,
            "enc_kwargs": {
                "backbone": _vae_backbone(shape, shape.encoder_width, shape.encoder_layers, False),
                "input_dim": ROW_SAMPLES,
                "hop_size": ROW_SAMPLES,
                "latent_dim": LATENT_WIDTH,
            },
            "dec_kwargs": {
                "backbone": _vae_backbone(
                    shape, shape.decoder_width, shape.decoder_layers, shape.windowed
                ),
                "output_dim": ROW_SAMPLES,
                "latent_dim": LATENT_WIDTH,
            },
        },
    }


def flash_config(config: dict[str, Any]) -> dict[str, Any]:
    """Convert the configuration of Ming-omni-tts to `talker/config.json` of Ming-flash-omni."""
    flow = {k: v for k, v in config["ditar_config"].items() if not k.endswith("patch_size")}
    return {
        "steps": 10,
        "patch_size": STEP_LATENTS,
        "history_patch_size": HISTORY_LATENTS,
        "latent_dim": LATENT_WIDTH,
        "cfg_strength": 2.0,
        "flowmodel": {"in_channels": LATENT_WIDTH} | flow,
        "aggregator": {"in_channels": LATENT_WIDTH} | config["aggregator_config"],
    }


def _vae_backbone(shape: MingShape, width: int, layers: int, windowed: bool) -> dict[str, Any]:
    return {
        **_qwen2_config(width, 2 * width, layers, VAE_VOCABULARY),
        "num_attention_heads": shape.vae_heads,
        "num_key_value_heads": shape.vae_kv_heads,
        "rope_theta": 10000.0,
        "use_sliding_window": windowed,
        "sliding_window": WINDOW if windowed else None,
        "max_window_layers": 0 if windowed else layers,
    }


def _qwen2_config(width: int, inner: int, layers: int, vocabulary: int) -> dict[str, Any]:
    return {
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": inner,
        "max_position_embeddings": POSITIONS,
        "model_type": "qwen2",
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-06,
        "use_cache": True,
        "vocab_size": vocabulary,
    }
