"""Sizes of a tiny Qwen3-Omni checkpoint, and the `config.json` that follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon.errors import InvalidArgument
from antiphon.testing.tiny_tokenizer import TinyVocabulary

if TYPE_CHECKING:
    from transformers import Qwen3OmniMoeConfig

# Hugging Face never draws the last 1024 ids of the talker's vocabulary but eos.
CODEC_SPECIALS = 1024
VOICES = ("chelsie", "ethan", "aiden")
CODEC_PAD, CODEC_BOS, CODEC_EOS, CODEC_NOTHINK, CODEC_THINK_BOS, CODEC_THINK_EOS = range(6)
FIRST_VOICE = 16
VOCABULARY_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of a tiny checkpoint; the names follow the parts of the model.

    The talker's and the code predictor's hidden size are one (`talker_hidden`), as
    Hugging Face adds their embeddings. `accept_layer` counts the embedding as 0.
    Raises `InvalidArgument` for sizes that do not fit together.
    """

    hidden: int = 64
    layers: int = 3
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    experts: int = 8
    experts_per_token: int = 2
    expert_intermediate: int = 32
    accept_layer: int = 2
    audio_hidden: int = 32
    audio_layers: int = 2
    audio_heads: int = 2
    vision_hidden: int = 32
    vision_layers: int = 2
    vision_heads: int = 2
    talker_hidden: int = 48
    talker_layers: int = 2
    talker_heads: int = 4
    talker_kv_heads: int = 2
    talker_head_dim: int = 16
    talker_experts: int = 6
    talker_experts_per_token: int = 2
    talker_expert_intermediate: int = 24
    talker_norm_topk: bool = True
    code_groups: int = 4
    codebook_size: int = 64
    predictor_layers: int = 2
    predictor_heads: int = 4
    predictor_kv_heads: int = 2
    predictor_head_dim: int = 16
    decoder_hidden: int = 32
    decoder_layers: int = 2
    decoder_heads: int = 2
    decoder_kv_heads: int = 2
    decoder_window: int = 72
    decoder_dim: int = 64
    raw_bytes: bool = False

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < (0 if name in ("raw_bytes", "talker_norm_topk") else 1):
                raise InvalidArgument(f"{name}: must be at least 1", field=name)
        for prefix in ("", "talker_", "predictor_", "decoder_"):
            self._check_divides(f"{prefix}kv_heads", f"{prefix}heads")
        self._check_divides("decoder_heads", "decoder_hidden", even=True)
        self._check_divides("audio_heads", "audio_hidden", even=True)
        self._check_divides("vision_heads", "vision_hidden", even=True)
        for name in ("head_dim", "talker_head_dim", "predictor_head_dim"):
            if getattr(self, name) % 2 or getattr(self, name) < 8:
                raise InvalidArgument(f"{name}: must be even and at least 8", field=name)
        for part in ("", "talker_"):
            top_k = f"{part}experts_per_token"
            if getattr(self, top_k) >= getattr(self, f"{part}experts"):
                raise InvalidArgument(f"{top_k}: must be below {part}experts", field=top_k)
        if self.accept_layer >= self.layers:
            raise InvalidArgument("accept_layer: must be below layers", field="accept_layer")
        if self.decoder_dim % 16:
            raise InvalidArgument("decoder_dim: must be a multiple of 16", field="decoder_dim")
        if self.code_groups < 2:
            raise InvalidArgument("code_groups: must be at least 2", field="code_groups")

    def _check_divides(self, name: str, whole: str, *, even: bool = False) -> None:
        """Raise unless `whole` is a multiple of `name` (an even one with `even`)."""
        size, factor = getattr(self, whole), getattr(self, name)
        if size % factor or (even and (size // factor) % 2):
            kind = "an even multiple" if even else "a multiple"
            raise InvalidArgument(f"{whole}: must be {kind} of {name}", field=whole)

    @property
    def talker_vocabulary(self) -> int:
        """Codes first, then the special ids."""
        return self.codebook_size + CODEC_SPECIALS

    @property
    def codec_eos(self) -> int:
        """The talker's id that ends speech."""
        return self.codebook_size + CODEC_EOS


SMALL = TinyShape()
OTHER = TinyShape(
    hidden=96,
    layers=4,
    heads=4,
    kv_heads=1,
    head_dim=32,
    experts=6,
    experts_per_token=3,
    expert_intermediate=40,
    accept_layer=1,
    audio_hidden=48,
    audio_layers=1,
    audio_heads=3,
    talker_hidden=64,
    talker_layers=3,
    talker_heads=6,
    talker_kv_heads=3,
    talker_head_dim=24,
    talker_experts=8,
    talker_experts_per_token=3,
    talker_expert_intermediate=16,
    talker_norm_topk=False,
    code_groups=8,
    codebook_size=96,
    predictor_layers=1,
    predictor_heads=3,
    predictor_kv_heads=1,
    predictor_head_dim=24,
    decoder_hidden=48,
    decoder_layers=3,
    decoder_heads=4,
    decoder_window=9,
    decoder_dim=48,
    raw_bytes=True,
)


def make_config(shape: TinyShape, vocabulary: TinyVocabulary) -> Qwen3OmniMoeConfig:
    """The whole model's configuration; special ids come from the vocabulary."""
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
    """What thinker and talker both say about placeholders and time."""
    ids = vocabulary.ids
    return {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "user_token_id": ids["user"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }


def _mrope(head_dim: int) -> dict[str, Any]:
    """Interleaved three-axis RoPE; the sections cover half of the head dimension."""
    side = head_dim // 2 // 3
    return {
        "rope_type": "default",
        "rope_theta": 1000000.0,
        "mrope_interleaved": True,
        "interleaved": True,
        "mrope_section": [head_dim // 2 - 2 * side, side, side],
    }


def _thinker(shape: TinyShape, vocabulary: TinyVocabulary) -> dict[str, Any]:
    """`thinker_config`: text model, audio tower and vision tower."""
    multiple = VOCABULARY_MULTIPLE
    return _multimodal_ids(vocabulary) | {
        "text_config": {
            "vocab_size": (vocabulary.size // multiple + 1) * multiple,
            "hidden_size": shape.hidden,
            "intermediate_size": 2 * shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.experts_per_token,
            "moe_intermediate_size": shape.expert_intermediate,
            "norm_topk_prob": True,
            "rope_parameters": _mrope(shape.head_dim),
        },
        "audio_config": {
            "num_mel_bins": 128,
            "d_model": shape.audio_hidden,
            "encoder_layers": shape.audio_layers,
            "encoder_attention_heads": shape.audio_heads,
            "encoder_ffn_dim": 2 * shape.audio_hidden,
            "downsample_hidden_size": 8,
            "output_dim": shape.hidden,
        },
        "vision_config": {
            "depth": shape.vision_layers,
            "hidden_size": shape.vision_hidden,
            "intermediate_size": 2 * shape.vision_hidden,
            "num_heads": shape.vision_heads,
            "out_hidden_size": shape.hidden,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": list(range(min(shape.vision_layers, shape.layers))),
        },
    }


def _talker(shape: TinyShape, vocabulary: TinyVocabulary) -> dict[str, Any]:
    """`talker_config`: text model and code predictor."""
    first = shape.codebook_size
    return _multimodal_ids(vocabulary) | {
        "text_config": {
            "vocab_size": shape.talker_vocabulary,
            "hidden_size": shape.talker_hidden,
            "intermediate_size": 2 * shape.talker_hidden,
            "num_hidden_layers": shape.talker_layers,
            "num_attention_heads": shape.talker_heads,
            "num_key_value_heads": shape.talker_kv_heads,
            "head_dim": shape.talker_head_dim,
            "num_experts": shape.talker_experts,
            "num_experts_per_tok": shape.talker_experts_per_token,
            "moe_intermediate_size": shape.talker_expert_intermediate,
            "shared_expert_intermediate_size": shape.talker_expert_intermediate + 8,
            "norm_topk_prob": shape.talker_norm_topk,
            "rope_parameters": _mrope(shape.talker_head_dim),
        },
        "code_predictor_config": {
            "vocab_size": shape.codebook_size,
            "hidden_size": shape.talker_hidden,
            "intermediate_size": 2 * shape.talker_hidden,
            "num_hidden_layers": shape.predictor_layers,
            "num_attention_heads": shape.predictor_heads,
            "num_key_value_heads": shape.predictor_kv_heads,
            "head_dim": shape.predictor_head_dim,
            "num_code_groups": shape.code_groups,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
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
    """`code2wav_config`; the rates stay, so a frame is 1920 samples."""
    return {
        "codebook_size": shape.codebook_size,
        "num_quantizers": shape.code_groups,
        "hidden_size": shape.decoder_hidden,
        "intermediate_size": 2 * shape.decoder_hidden,
        "num_hidden_layers": shape.decoder_layers,
        "num_attention_heads": shape.decoder_heads,
        "num_key_value_heads": shape.decoder_kv_heads,
        "sliding_window": shape.decoder_window,
        "decoder_dim": shape.decoder_dim,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
