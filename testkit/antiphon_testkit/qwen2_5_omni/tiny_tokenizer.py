"""The tokenizer and audio front end of a tiny Qwen2.5-Omni checkpoint."""

from __future__ import annotations

from antiphon_testkit.tiny_tokenizer import TinyPreprocessor, TokenizerKind

# The tokens are in the released order. `<|endoftext|>` is used for padding, and `<|im_end|>` ends a
# reply.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|vision_pad|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
)

NAMED_TOKENS = {
    "audio_token": "<|AUDIO|>",
    "image_token": "<|IMAGE|>",
    "video_token": "<|VIDEO|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
}

TOKENIZER = TokenizerKind(
    SPECIAL_TOKENS,
    NAMED_TOKENS,
    first_turn="<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
)

PREPROCESSOR = TinyPreprocessor(
    "Qwen2_5OmniProcessor",
    patch_size=14,
    image_mean=(0.48145466, 0.4578275, 0.40821073),
    image_std=(0.26862954, 0.26130258, 0.27577711),
)
