"""The `config.json` of a tiny Qwen3-Omni checkpoint, based on its sizes and vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon_testkit import tiny_config
from antiphon_testkit.qwen3_omni.tiny_shape import TinyShape
from antiphon_testkit.qwen3_omni.tiny_tokenizer import NAMED_TOKENS
from antiphon_testkit.tiny_tokenizer import TinyVocabulary

if TYPE_CHECKING:
    from transformers import Qwen3OmniMoeConfig

VOICES = ("chelsie", "ethan", "aiden")
CODEC_PAD, CODEC_BOS, CODEC_EOS, CODEC_NOTHINK, CODEC_THINK_BOS, CODEC_THINK_EOS = range(6)
FIRST_VOICE = 16
PATCH_SIZE, POSITION_GRID = 16, 8


def make_config(shape: TinyShape, vocabulary: TinyVocabulary) -> Qwen3OmniMoeConfig:
    """Return the complete configuration. Special IDs are taken from the vocabulary."""
    from transformers import Qwen3OmniMoeConfig

    ids = vocabulary.ids
    return Qwen3OmniMoeConfig(
        architectures=["Qwen3OmniMoeForConditionalGeneration"],
        dtype="float32",
        thinker_config=_thinker(shape, vocabulary),
        talker_config=_talker(shape, vocabulary),
        code2wav_config=_code2wav(shape),
        enable_audio_output=True,
        im_start_token_id=ids["<|im_start|>"],
        im_end_token_id=ids["<|im_end|>"],
        tts_pad_token_id=ids["<tts_pad>"],
        tts_bos_token_id=ids["<tts_text_bos>"],
        tts_eos_token_id=ids["<tts_text_eod>"],
        system_token_id=ids["system"],
        user_token_id=ids["user"],
        assistant_token_id=ids["assistant"],
    )


def _multimodal_ids(vocabulary: TinyVocabulary) -> dict[str, Any]:
    """Return the placeholder and time fields that the thinker and the talker have in common."""
    return tiny_config.media_ids(vocabulary.ids, NAMED_TOKENS, "id") | {
        "user_token_id": vocabulary.ids["user"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }


def _mrope(head_dim: int) -> dict[str, Any]:
    """Return the settings for interleaved RoPE with three axes."""
    return tiny_config.mrope(head_dim, head_dim // 6) | {
        "mrope_interleaved": True,
        "interleaved": True,
    }


def _thinker(shape: TinyShape, vocabulary: TinyVocabulary) -> dict[str, Any]:
    """Return `thinker_config`, with the text model, the audio tower and the vision tower."""
    return _multimodal_ids(vocabulary) | {
        "text_config": tiny_config.decoder_sizes(shape)
        | {
            "vocab_size": tiny_config.padded_vocabulary(vocabulary.size),
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.experts_per_token,
            "moe_intermediate_size": shape.expert_intermediate,
            "norm_topk_prob": True,
            "rope_parameters": _mrope(shape.head_dim),
            "tie_word_embeddings": False,
        },
        "audio_config": tiny_config.audio_tower(shape) | {"downsample_hidden_size": 8},
        "vision_config": tiny_config.vision_tower(shape)
        | {
            "num_position_embeddings": POSITION_GRID**2,
            # These fields are released with the model and read by vLLM, but transformers' class
            # doesn't have them.
            "image_size": POSITION_GRID * PATCH_SIZE,
            "apply_vit_abs_pos_embed": True,
            "patch_size": PATCH_SIZE,
            "deepstack_visual_indexes": list(range(min(shape.vision_layers, shape.layers))),
        },
    }


def _talker(shape: TinyShape, vocabulary: TinyVocabulary) -> dict[str, Any]:
    """Return `talker_config`, with the text model and the code predictor."""
    first = shape.codebook_size
    return _multimodal_ids(vocabulary) | {
        "text_config": tiny_config.decoder_sizes(shape, "talker_")
        | {
            "vocab_size": shape.talker_vocabulary,
            "num_experts": shape.talker_experts,
            "num_experts_per_tok": shape.talker_experts_per_token,
            "moe_intermediate_size": shape.talker_expert_intermediate,
            "shared_expert_intermediate_size": shape.talker_expert_intermediate + 8,
            "norm_topk_prob": shape.talker_norm_topk,
            "rope_parameters": _mrope(shape.talker_head_dim),
        },
        "code_predictor_config": tiny_config.decoder_sizes(
            shape, "predictor_", hidden=shape.talker_hidden
        )
        | {
            "vocab_size": shape.codebook_size,
            "num_code_groups": shape.code_groups,
            "rope_parameters": tiny_config.rope(1000000.0),
        },
        "num_code_groups": shape.code_groups,
        "thinker_hidden_size": shape.hidden,
        "accept_hidden_layer": shape.accept_layer,
        "spatial_merge_size": 2,
        "codec_pad_id": first + CODEC_PAD,
        "codec_bos_id": first + CODEC_BOS,
        "codec_eos_token_id": first + CODEC_EOS,
        "codec_nothink_id": first + CODEC_NOTHINK,
        "codec_think_bos_id": first + CODEC_THINK_BOS,
        "codec_think_eos_id": first + CODEC_THINK_EOS,
        "speaker_id": {name: first + FIRST_VOICE + at for at, name in enumerate(VOICES)},
    }


def _code2wav(shape: TinyShape) -> dict[str, Any]:
    """Return `code2wav_config`. The rates don't change, so a frame corresponds to 1920 samples."""
    return tiny_config.decoder_sizes(shape, "decoder_") | {
        "codebook_size": shape.codebook_size,
        "num_quantizers": shape.code_groups,
        "sliding_window": shape.decoder_window,
        "decoder_dim": shape.decoder_dim,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "rope_parameters": tiny_config.rope(10000.0),
    }
