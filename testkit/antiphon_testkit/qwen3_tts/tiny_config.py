"""The configuration files of a tiny Qwen3-TTS checkpoint, with the same keys as the released
ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.pipelines.qwen3_tts import SAMPLE_RATE_HZ
from antiphon_testkit.qwen3_tts.tiny_shape import BASE_KIND, CUSTOM_VOICE_KIND, TtsShape
from antiphon_testkit.tiny_config import decoder_sizes

SAMPLES_PER_FRAME = 1920

# The offsets of the control IDs in a released checkpoint, counted from the end of the codes.
CONTROL_IDS = {
    "codec_pad_id": 100,
    "codec_bos_id": 101,
    "codec_eos_token_id": 102,
    "codec_think_id": 106,
    "codec_nothink_id": 107,
    "codec_think_bos_id": 108,
    "codec_think_eos_id": 109,
}
LANGUAGES = {"english": 2, "chinese": 7, "hill_dialect": 14}
VOICES = {"alto": 813, "bass": 1017, "hill": 827}
DIALECTS: Mapping[str, str | bool] = {"alto": False, "bass": False, "hill": "hill_dialect"}

GENERATION_CONFIG = {
    "do_sample": True,
    "max_new_tokens": 8192,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_k": 50,
    "subtalker_top_p": 1.0,
    "temperature": 0.9,
    "top_k": 50,
    "top_p": 1.0,
}
PREPROCESSOR_CONFIG = {
    "padding_side": "left",
    "padding_value": 0.0,
    "processor_class": "Qwen3TTSProcessor",
    "return_attention_mask": True,
}
CODEC_PREPROCESSOR_CONFIG = {
    "chunk_length_s": None,
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "overlap": None,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": SAMPLE_RATE_HZ,
}


def make_config(shape: TtsShape, ids: Mapping[str, int], text_vocabulary: int) -> dict[str, Any]:
    """Return the content of `config.json`. `ids` contains the tokenizer's IDs."""
    config: dict[str, Any] = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "assistant_token_id": ids["assistant"],
        "im_end_token_id": ids["<|im_end|>"],
        "im_start_token_id": ids["<|im_start|>"],
        "model_type": "qwen3_tts",
        "talker_config": _talker_config(shape, text_vocabulary),
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "transformers_version": "4.57.3",
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "tts_model_size": "1b7",
        "tts_model_type": shape.kind,
        "tts_pad_token_id": ids["<tts_pad>"],
    }
    if shape.kind == BASE_KIND:
        config["speaker_encoder_config"] = speaker_config(shape)
    return config


def speaker_config(shape: TtsShape) -> dict[str, Any]:
    """Return the section for the encoder that computes speaker vectors."""
    width = shape.speaker_channels
    return {
        "enc_attention_channels": width,
        "enc_channels": [width, width, width, width, 3 * width],
        "enc_dilations": [1, 2, 3, 4, 1],
        "enc_dim": shape.hidden,
        "enc_kernel_sizes": [5, 3, 3, 3, 1],
        "enc_res2net_scale": 4,
        "enc_se_channels": width // 2,
        "mel_dim": 128,
        "sample_rate": SAMPLE_RATE_HZ,
    }


def _talker_config(shape: TtsShape, text_vocabulary: int) -> dict[str, Any]:
    codes = shape.codebook_size
    preset = shape.kind == CUSTOM_VOICE_KIND
    return decoder_sizes(shape) | {
        "attention_bias": False,
        "attention_dropout": 0,
        "code_predictor_config": _predictor_config(shape),
        "codec_language_id": {name: codes + place for name, place in LANGUAGES.items()},
        **{name: codes + place for name, place in CONTROL_IDS.items()},
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 32768,
        "model_type": "qwen3_tts_talker",
        "num_code_groups": shape.code_groups,
        "position_id_per_seconds": 13,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [shape.head_dim // 4, shape.head_dim // 8, shape.head_dim // 8],
            "rope_type": "default",
            "type": "default",
        },
        "rope_theta": 1000000,
        "sliding_window": None,
        "spk_id": {name: codes + place for name, place in VOICES.items()} if preset else {},
        "spk_is_dialect": dict(DIALECTS) if preset else {},
        "text_hidden_size": shape.text_hidden,
        "text_vocab_size": text_vocabulary,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.talker_vocabulary,
    }


def _predictor_config(shape: TtsShape) -> dict[str, Any]:
    return decoder_sizes(shape, "predictor_") | {
        "attention_bias": False,
        "attention_dropout": 0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "layer_types": ["full_attention"] * shape.predictor_layers,
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "model_type": "qwen3_tts_talker_code_predictor",
        "num_code_groups": shape.code_groups,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.codebook_size,
    }


def make_codec_config(shape: TtsShape) -> dict[str, Any]:
    """Return the content of `speech_tokenizer/config.json`."""
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "decode_upsample_rate": SAMPLES_PER_FRAME,
        "decoder_config": decoder_sizes(shape, "decoder_")
        | {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "codebook_dim": shape.codebook_dim,
            "codebook_size": shape.codebook_size,
            "decoder_dim": shape.decoder_dim,
            "hidden_act": "silu",
            "latent_dim": shape.latent,
            "layer_scale_initial_scale": 0.01,
            "max_position_embeddings": 8000,
            "num_quantizers": shape.code_groups,
            "num_semantic_quantizers": 1,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000,
            "semantic_codebook_size": shape.codebook_size,
            "sliding_window": shape.decoder_window,
            "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2],
            "vector_quantization_hidden_dimension": shape.codebook_dim,
        },
        "encode_downsample_rate": SAMPLES_PER_FRAME,
        "encoder_config": _encoder_config(shape),
        "encoder_valid_num_quantizers": shape.code_groups,
        "input_sample_rate": SAMPLE_RATE_HZ,
        "model_type": "qwen3_tts_tokenizer_12hz",
        "output_sample_rate": SAMPLE_RATE_HZ,
        "transformers_version": "4.57.3",
    }


def _encoder_config(shape: TtsShape) -> dict[str, Any]:
    """Return the configuration of Mimi's encoder."""
    return {
        "codebook_dim": shape.codebook_dim // 2,
        "codebook_size": shape.codebook_size,
        "frame_rate": 12.5,
        "head_dim": shape.encoder_hidden // 2,
        "hidden_size": shape.encoder_hidden,
        "intermediate_size": 2 * shape.encoder_hidden,
        "num_attention_heads": 2,
        "num_filters": shape.encoder_filters,
        "num_hidden_layers": shape.encoder_layers,
        "num_key_value_heads": 2,
        "num_quantizers": shape.encoder_codebooks,
        "num_semantic_quantizers": 1,
        "sampling_rate": SAMPLE_RATE_HZ,
        "sliding_window": 250,
        "upsample_groups": shape.encoder_hidden,
        "upsampling_ratios": [8, 6, 5, 4],
        "vector_quantization_hidden_dimension": shape.codebook_dim // 2,
    }
