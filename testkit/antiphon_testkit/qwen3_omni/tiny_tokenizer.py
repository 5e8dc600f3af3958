"""The tokenizer and audio front end of a tiny Qwen3-Omni checkpoint."""

from __future__ import annotations

from antiphon_testkit.tiny_tokenizer import TinyPreprocessor, TokenizerKind

# The tokens are in the released order. `<|endoftext|>` is used for padding, and `<|im_end|>` ends a
# reply.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)

NAMED_TOKENS = {
    "audio_token": "<|audio_pad|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}

TOKENIZER = TokenizerKind(SPECIAL_TOKENS, NAMED_TOKENS, tools=True)

PREPROCESSOR = TinyPreprocessor(
    "Qwen3OmniMoeProcessor",
    patch_size=16,
    image_mean=(0.5, 0.5, 0.5),
    image_std=(0.5, 0.5, 0.5),
)
