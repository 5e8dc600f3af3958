"""The random weights and voices of a tiny Qwen2.5-Omni checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from antiphon_testkit.qwen2_5_omni.tiny_config import (
    CODEC_BOS,
    CODEC_EOS,
    FIRST_VOICE,
    VOICES,
)
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from antiphon_testkit.tiny_tokenizer import TinyVocabulary
from antiphon_testkit.tiny_weights import WeightRules, end_replies, speech_end

if TYPE_CHECKING:
    from transformers import Qwen2_5OmniForConditionalGeneration

RULES = WeightRules(
    uniform=((r"(norm\w*|ln_\w+|ln_q)\.weight$", 0.6, 1.4),),
    normal=(
        (r"\.bias$", 0.1),
        (r"\.(alpha|beta)$", 0.3),
        (r"(embed_tokens|codec_embed|audio_bos_eos_token)\.weight$", 1.0),
    ),
    gains=(
        (r"(lm_head|codec_head)\.weight$", 3.0),
        (r"thinker_to_talker_proj\.weight$", 1.5),
        (r"attn_norm\.linear\.weight$", 0.6),
        (r"code2wav_dit_model\.", 1.0),
        (r"code2wav_bigvgan_model\.conv_post", 0.3),
        (r"code2wav_bigvgan_model\.resblocks", 0.5),
        (r"code2wav_bigvgan_model\.", 1.0),
        (r"", 1.5),
    ),
)

PADDING_SHIFT = 10.0
# Log amplitudes that are typical of speech. Most of them are within the range that the vocoder
# doesn't clip.
MEL_LEVEL = -4.0


@torch.no_grad()
def fill_weights(
    model: Qwen2_5OmniForConditionalGeneration,
    shape: TinyOmni25Shape,
    vocabulary: TinyVocabulary,
    seed: int,
) -> None:
    """Overwrite every parameter. With these weights, replies and speech end by themselves."""
    RULES.fill(model, seed)
    parts: Any = model
    parts.token2wav.code2wav_dit_model.proj_out.bias += MEL_LEVEL
    _store_buffer(parts.token2wav.code2wav_dit_model.rotary_embed)
    words = parts.thinker.model.embed_tokens.weight
    end_replies(
        parts.thinker.lm_head.weight,
        vocabulary.spoken(raw_bytes=False),
        vocabulary.ids["<|im_end|>"],
        words=words,
        norm=parts.thinker.model.norm.weight,
        endless=shape.endless_text,
    )
    _shape_speech(parts.talker, words, shape)


def _store_buffer(rotary: Any) -> None:
    """Store a buffer that the released files contain because transformers 4.x saved them.
    transformers 5.19 computes it instead.

    If a stage read this buffer, its audio would differ from the reference.
    """
    rotary.inv_freq = torch.nn.Buffer(torch.zeros_like(rotary.inv_freq), persistent=True)


def _shape_speech(talker: Any, words: torch.Tensor, shape: TinyOmni25Shape) -> None:
    """Change the head so that speech consists of codes. All other IDs have a zero row, as in
    `end_replies`.
    """
    head, pad = talker.codec_head.weight, shape.codec_pad
    ends = [pad + CODEC_EOS, *([pad] if shape.pad_ends else [])]
    padding = talker.thinker_to_talker_proj(words[talker.config.tts_text_pad_token_id])
    padding = padding * talker.model.norm.weight
    rows = [speech_end(head[end], padding, PADDING_SHIFT) for end in ends]
    begin = head[pad + CODEC_BOS].clone()
    head[pad if shape.stray_codes else shape.first_stray :] = 0.0
    # This ID is likely, and must be prevented from being drawn.
    head[pad + CODEC_BOS] = 2 * begin
    if not shape.endless_speech:
        for end, row in zip(ends, rows, strict=True):
            head[end] = row


def write_voices(path: Path, shape: TinyOmni25Shape, vocabulary: TinyVocabulary, seed: int) -> None:
    """Write `spk_dict.pt` in the same format as the released file. It contains tensors, numbers and
    names, so that loading it doesn't execute any code.
    """
    generator = torch.Generator().manual_seed(seed)

    def voice(index: int) -> dict[str, Any]:
        mel = torch.randn(1, shape.reference_frames, 80, generator=generator)
        return {
            "bos_token": vocabulary.size + FIRST_VOICE + index,
            "cond": torch.randn(1, shape.speaker_width, generator=generator),
            "ref_mel": 1.5 * mel + MEL_LEVEL,
        }

    torch.save({name: voice(index) for index, name in enumerate(VOICES)}, path)
