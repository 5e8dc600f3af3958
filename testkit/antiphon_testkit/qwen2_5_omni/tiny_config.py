"""The `config.json` of a tiny Qwen2.5-Omni checkpoint, based on its sizes and vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon_testkit import tiny_config
from antiphon_testkit.qwen2_5_omni.tiny_shape import REPEATS, TinyOmni25Shape
from antiphon_testkit.qwen2_5_omni.tiny_tokenizer import NAMED_TOKENS
from antiphon_testkit.tiny_tokenizer import TinyVocabulary

if TYPE_CHECKING:
    from transformers import Qwen2_5OmniConfig

VOICES = ("Ethan", "Chelsie")
"""The voices in the order of the released `spk_dict.pt`. The last one is the default."""

# These come after the tokenizer's IDs, as in the released vocabulary.
TEXT_PAD, TEXT_BOS, TEXT_EOS, FIRST_VOICE = 1, 2, 3, 8
CODEC_BOS, CODEC_EOS, CODEC_MASK = 1, 2, 4
"""These come after the codec's pad ID, as in the released vocabulary."""


def make_config(shape: TinyOmni25Shape, vocabulary: TinyVocabulary) -> Qwen2_5OmniConfig:
    """Return the complete configuration. Special IDs are taken from the vocabulary."""
    from transformers import Qwen2_5OmniConfig

    return Qwen2_5OmniConfig(
        architectures=["Qwen2_5OmniModel"],
        dtype="float32",
        thinker_config=_thinker(shape, vocabulary),
        talker_config=_talker(shape, vocabulary),
        token2wav_config=_token2wav(shape),
        enable_audio_output=True,
    )


def _multimodal_ids(vocabulary: TinyVocabulary) -> dict[str, Any]:
    """Return the placeholder and time fields that the thinker and the talker have in common."""
    return tiny_config.media_ids(vocabulary.ids, NAMED_TOKENS, "index") | {
        "position_id_per_seconds": 25,
        "seconds_per_chunk": 2,
    }


def _mrope(head_dim: int) -> dict[str, Any]:
    return tiny_config.mrope(head_dim, head_dim // 2 * 3 // 8)


def _thinker(shape: TinyOmni25Shape, vocabulary: TinyVocabulary) -> dict[str, Any]:
    """Return `thinker_config`, with the text model, the audio tower and the vision tower."""
    size = vocabulary.size + FIRST_VOICE + len(VOICES)
    return _multimodal_ids(vocabulary) | {
        "user_token_id": vocabulary.ids["user"],
        "text_config": tiny_config.decoder_sizes(shape)
        | {
            "vocab_size": tiny_config.padded_vocabulary(size),
            "rope_parameters": _mrope(shape.hidden // shape.heads),
            "tie_word_embeddings": False,
        },
        "audio_config": tiny_config.audio_tower(shape),
        "vision_config": tiny_config.vision_tower(shape)
        | {"fullatt_block_indexes": [shape.vision_layers - 1]},
    }


def _talker(shape: TinyOmni25Shape, vocabulary: TinyVocabulary) -> dict[str, Any]:
    """Return `talker_config`."""
    text, codec = vocabulary.size, shape.codec_pad
    shared = _multimodal_ids(vocabulary) | tiny_config.decoder_sizes(shape, "talker_")
    return shared | {
        "vocab_size": shape.talker_vocabulary,
        "embedding_size": shape.hidden,
        "rope_parameters": _mrope(shape.talker_head_dim),
        "tts_text_start_token_id": text + TEXT_BOS,
        "tts_text_end_token_id": text + TEXT_EOS,
        "tts_text_pad_token_id": text + TEXT_PAD,
        "tts_codec_pad_token_id": codec,
        "tts_codec_start_token_id": codec + CODEC_BOS,
        "tts_codec_end_token_id": codec + CODEC_EOS,
        "tts_codec_mask_token_id": codec + CODEC_MASK,
    }


def _token2wav(shape: TinyOmni25Shape) -> dict[str, Any]:
    """Return `token2wav_config`. The rates don't change, so a code corresponds to 480 samples."""
    return {
        "dit_config": {
            "hidden_size": shape.flow_hidden,
            "num_hidden_layers": shape.flow_layers,
            "num_attention_heads": shape.flow_heads,
            "head_dim": shape.flow_head_dim,
            "emb_dim": shape.flow_code_width,
            "block_size": shape.block_frames,
            "look_ahead_layers": [1],
            "look_backward_layers": [0, 2],
            "repeats": REPEATS,
            # In the released model, the table also has one row more than this value.
            "num_embeds": shape.codebook_size + 1,
            "mel_dim": 80,
            "enc_emb_dim": shape.speaker_width,
            "enc_dim": 16,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_attention_channels": 8,
            "enc_se_channels": 8,
            "rope_parameters": tiny_config.rope(10000.0),
        },
        "bigvgan_config": {
            "mel_dim": 80,
            "upsample_initial_channel": shape.vocoder_channels,
        },
    }
