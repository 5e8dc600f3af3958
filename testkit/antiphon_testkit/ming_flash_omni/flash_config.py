"""The `config.json` and `preprocessor_config.json` of a tiny Ming-flash-omni checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.pipelines.ming_tts import FLASH_ARCHITECTURE
from antiphon_testkit.ming_flash_omni.flash_shape import FlashShape

MEL_BINS = 128
ENCODER_POSITIONS = 1500
PATCH, MERGED, FRAMES_TOGETHER = 16, 2, 2
POSITION_GRID = 6
"""The vision tower has learned positions on a square grid with this side length."""
DOWNSAMPLING_KERNEL, DOWNSAMPLING_STRIDE = 3, 2
PROJECTION_LAYERS = 2
POSITIONS = 4096

# The order differs from that of the released tokenizer.
SPECIAL_TOKENS = (
    *("<|startoftext|>", "<|endoftext|>", "[CLS]", "[gMASK]"),
    *("<imagePatch>", "<image>", "</image>", "<video>", "</video>", "<framePatch>"),
    *("<role>", "</role>", "<|role_end|>"),
    *("<audioPatch>", "<audio>", "</audio>", "<end_of_audio>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)


def flash_omni_config(shape: FlashShape, ids: Mapping[str, int], vocabulary: int) -> dict[str, Any]:
    """Return the configuration, with all keys that inference reads from a released one."""
    return {
        "architectures": [FLASH_ARCHITECTURE],
        "model_type": "bailingmm_moe_v2_lite",
        "mlp_depth": PROJECTION_LAYERS,
        "torch_dtype": "bfloat16",
        "audio_config": {
            "ds_kernel_size": DOWNSAMPLING_KERNEL,
            "ds_stride": DOWNSAMPLING_STRIDE,
            "norm_query_embeds": True,
            "whisper_encoder_config": {
                "n_ctx": ENCODER_POSITIONS,
                "n_head": shape.audio_heads,
                "n_layer": shape.audio_layers,
                "n_mels": MEL_BINS,
                "n_state": shape.audio_hidden,
            },
        },
        "llm_config": _language_model(shape, ids, vocabulary),
        "vision_config": {
            "deepstack_visual_indexes": [0],
            "depth": shape.vision_layers,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": shape.vision_hidden,
            "in_channels": 3,
            "intermediate_size": 2 * shape.vision_hidden,
            "model_type": "qwen3_moe_vit",
            "num_heads": shape.vision_heads,
            "num_position_embeddings": POSITION_GRID**2,
            "out_hidden_size": shape.hidden,
            "patch_size": PATCH,
            "spatial_merge_size": MERGED,
            "temporal_patch_size": FRAMES_TOGETHER,
        },
    }


def _language_model(shape: FlashShape, ids: Mapping[str, int], vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["BailingMoeV2ForCausalLM"],
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "eos_token_id": ids["<|role_end|>"],
        "first_k_dense_replace": shape.dense_layers,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "image_patch_token": ids["<imagePatch>"],
        "image_start_token": ids["<image>"],
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": POSITIONS,
        "model_type": "bailing_moe_v2",
        "moe_intermediate_size": shape.expert_inner,
        "moe_router_topk_scaling_factor": 2.5,
        "n_group": shape.expert_groups,
        "norm_head": False,
        "norm_softmax": False,
        "norm_topk_prob": True,
        "num_attention_heads": shape.heads,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen_experts,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "num_shared_experts": shape.shared_experts,
        "output_dropout": 0.0,
        "output_router_logits": False,
        "pad_token_id": ids["<|endoftext|>"],
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"factor": None, "type": "video_rope"},
        "rope_theta": 2_400_000,
        "router_type": "MultiRouter",
        "tie_word_embeddings": False,
        "topk_group": shape.chosen_groups,
        "use_bias": False,
        "use_expert_bias": True,
        "use_interleaved_frame_timestamp": True,
        "use_qk_norm": True,
        "use_qkv_bias": False,
        "video_patch_token": ids["<framePatch>"],
        # In the released file, this is the ID of `</image>`.
        "video_start_token": ids["</image>"],
        "vocab_size": vocabulary,
    }


def preprocessor_config() -> dict[str, Any]:
    """Return the settings of recordings and images."""
    return {
        "feature_size": 80,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "max_pixels": 16_777_216,
        "merge_size": MERGED,
        "min_pixels": 4096,
        "patch_size": PATCH,
        "sampling_rate": 16_000,
        "temporal_patch_size": FRAMES_TOGETHER,
        "use_interleaved_frame_timestamp": True,
        "wav_frontend_args": {"cmvn_file": "am.mvn", "fs": 16_000, "n_mels": 80},
        "whisper_frontend_args": {"n_mels": MEL_BINS},
    }
