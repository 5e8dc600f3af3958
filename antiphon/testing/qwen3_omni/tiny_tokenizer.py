"""The tokenizer and audio front end of a tiny Qwen3-Omni checkpoint.

A byte-level BPE with Qwen's pre-tokenisation and special tokens and a few hundred
merges. The ids differ from the released ones, so that code that knows an id by
heart fails.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# In the released order; `<|endoftext|>` pads and `<|im_end|>` ends a reply.
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

# Released as added tokens that are not special: decoding keeps them.
PLAIN_ADDED_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")

NAMED_TOKENS = {
    "audio_token": "<|audio_pad|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}

# `|` separates; most words carry the space before them, as in any byte-level BPE.
COMMON_WORDS = (
    " the| of| and| to| in| is| you| that| it| he| was| for| on| are| with| as| his| they| at"
    "| be| this| have| from| or| one| had| by| word| but| not| what| all| were| we| when| your"
    "| can| said| there| use| an| each| which| she| do| how| their| if| will| up| other| about"
    "| out| many| then| them| these| so| some| her| would| make| like| him| into| time| has"
    "| look| two| more| write| go| see| number| no| way| could| people| my| than| first| water"
    "| been| call| who| oil| its| now| find| long| down| day| did| get| come| made| may| part"
    "|Hello|How|What|The|You|Yes|No|ing|ed| audio| voice| speak| sound| hear| say| weather"
    "| é| ü|你|好|。|\uff0c|é|ñ|😀"
)
# Role names come first: their merges must win, because a role is one token.
WORDS = ("assistant", "system", "user", *COMMON_WORDS.split("|"))

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'audio' or 'audio' in part or 'audio_url' in part -%}
{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}
{%- elif part.type == 'image' or 'image' in part or 'image_url' in part -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif part.type == 'video' or 'video' in part -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- elif 'text' in part -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


@dataclass(frozen=True, slots=True)
class TinyVocabulary:
    """Ids by token; `spoken` are the ids that a reply may be made of.

    `spoken` leaves out special tokens and control characters; with `raw_bytes`
    it holds lone bytes above 127, so that replies break characters apart.
    """

    ids: dict[str, int]
    size: int

    def spoken(self, *, raw_bytes: bool) -> list[int]:
        """Ids of text tokens, ascending."""
        byte_of = {char: byte for byte, char in enumerate(_byte_characters())}
        special = {*SPECIAL_TOKENS, *PLAIN_ADDED_TOKENS}
        return [
            index
            for token, index in sorted(self.ids.items(), key=lambda item: item[1])
            if token not in special
            and (
                len(token) > 1
                or 0x20 <= byte_of[token] < 0x7F
                or (raw_bytes and byte_of[token] >= 0x80)
            )
        ]


def write_tokenizer(directory: Path) -> TinyVocabulary:
    """Write the tokenizer's files and the chat template; return its vocabulary."""
    vocab, merges = _vocabulary()
    tokenizer = save_tokenizer(directory, vocab, merges)
    tokenizer.backend_tokenizer.model.save(str(directory))
    return TinyVocabulary(tokenizer.get_vocab(), len(tokenizer))


def save_tokenizer(directory: Path, vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    """Write a `Qwen2Tokenizer` of these tokens, with Qwen's own and the chat template."""
    from transformers import AddedToken, Qwen2Tokenizer

    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,  # type: ignore[arg-type]  # pairs, as tokenizer.json holds them
        add_prefix_space=False,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=32768,
        chat_template=CHAT_TEMPLATE,
        extra_special_tokens=NAMED_TOKENS,
    )
    tokenizer.add_tokens([AddedToken(each, special=True) for each in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(each, special=False) for each in PLAIN_ADDED_TOKENS])
    tokenizer.save_pretrained(directory)
    # Readers older than transformers 5 look for the template in this file.
    _update_json(directory / "tokenizer_config.json", {"chat_template": CHAT_TEMPLATE})
    return tokenizer


def write_preprocessor(directory: Path) -> None:
    """Write `preprocessor_config.json`: 128 mel bins at 16 kHz, and the image settings."""
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(  # type: ignore[no-untyped-call]
        feature_size=128, sampling_rate=16000, chunk_length=300, return_attention_mask=True
    )
    extractor.save_pretrained(directory)
    image = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen3OmniMoeProcessor",
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "merge_size": 2,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "min_pixels": 3136,
        "max_pixels": 12845056,
    }
    _update_json(directory / "preprocessor_config.json", image)


def _vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The BPE's vocabulary and merges: each word is built from left to right."""
    characters = _byte_characters()
    vocab = {character: index for index, character in enumerate(characters)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        pieces = [characters[byte] for byte in word.encode()]
        head = pieces[0]
        for piece in pieces[1:]:
            if head + piece not in vocab:
                vocab[head + piece] = len(vocab)
                merges.append((head, piece))
            head += piece
    return vocab, merges


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte (GPT-2's `bytes_to_unicode`)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def _update_json(path: Path, values: dict[str, Any]) -> None:
    """Add or replace top-level values of a JSON file."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
