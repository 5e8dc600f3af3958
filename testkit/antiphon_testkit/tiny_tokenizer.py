"""A tiny byte-level BPE with Qwen's pre-tokenization, for the tiny checkpoints of all Qwen
families.

It has a few hundred merges, and the special tokens of a family. The IDs are different from the
released ones, so that code with hard-coded IDs fails.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# In the released tokenizer, these are added tokens that aren't special, so decoding keeps them.
PLAIN_ADDED_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen's pre-tokenization."""

# The words are separated by `|`. As in any byte-level BPE, most of them include the preceding
# space.
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
# Role names come first, because their merges must take precedence: each role is a single token.
WORDS = ("assistant", "system", "user", *COMMON_WORDS.split("|"))

# Each family replaces AUDIO, IMAGE and VIDEO with its own text.
_CONTENT = """\
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'audio' or 'audio' in part or 'audio_url' in part -%}
{{- 'AUDIO' -}}
{%- elif part.type == 'image' or 'image' in part or 'image_url' in part -%}
{{- 'IMAGE' -}}
{%- elif part.type == 'video' or 'video' in part -%}
{{- 'VIDEO' -}}
{%- elif 'text' in part -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
"""
_HEADER = "{{- '<|im_start|>' + message.role + '\\n' -}}\n"
_END = "{{- '<|im_end|>\\n' -}}\n"
_TEMPLATE = "{%- for message in messages -%}\n" + _HEADER + _CONTENT + _END + "{%- endfor -%}\n"
_REPLY = """\
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

# The format that Qwen's models are trained on. The system message lists the functions, calls follow
# the assistant's text, and the results of calls are user messages.
_WITH_TOOLS = (
    """\
{%- if tools -%}
{{- '<|im_start|>system\\n' -}}
{%- if messages[0].role == 'system' -%}
{%- set message = messages[0] -%}
"""
    + _CONTENT
    + """\
{{- '\\n\\n' -}}
{%- endif -%}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' -}}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' -}}
{%- for tool in tools -%}
{{- '\\n' + (tool | tojson) -}}
{%- endfor -%}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and ' -}}
{{- 'arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' -}}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' -}}
"""
    + _END
    + """\
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}
{{- '<|im_start|>user' -}}
{%- endif -%}
{{- '\\n<tool_response>\\n' -}}
"""
    + _CONTENT
    + """\
{{- '\\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}
"""
    + _END
    + """\
{%- endif -%}
{%- elif not (tools and loop.first and message.role == 'system') -%}
"""
    + _HEADER
    + _CONTENT
    + """\
{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first -%}
{{- '\\n' -}}
{%- endif -%}
{%- set called = call.function or call -%}
{{- '<tool_call>\\n{"name": "' + called.name + '", "arguments": ' -}}
{%- if called.arguments is string -%}
{{- called.arguments -}}
{%- else -%}
{{- called.arguments | tojson -}}
{%- endif -%}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
"""
    + _END
    + """\
{%- endif -%}
{%- endfor -%}
"""
)


@dataclass(frozen=True, slots=True)
class TokenizerKind:
    """The properties of a family's tokenizer.

    `special` contains its special tokens in the released order. `named` maps roles (such as
    `audio_token` and `vision_bos_token`) to some of them. `first_turn` is the text that the chat
    template inserts if a conversation has no system message. If `tools` is true, the models can
    call functions.
    """

    special: tuple[str, ...]
    named: Mapping[str, str]
    first_turn: str = ""
    tools: bool = False

    @property
    def chat_template(self) -> str:
        """Return Qwen's chat template, with a placeholder between its marks for each recording,
        image and video.
        """
        named, first = self.named, ""
        if self.first_turn:
            told = self.first_turn.replace("\n", "\\n")
            first = (
                "{%- if messages[0].role != 'system' -%}\n"
                f"{{{{- '{told}' -}}}}\n"
                "{%- endif -%}\n"
            )

        def marked(kind: str, marks: str) -> str:
            parts = (f"{marks}_bos_token", f"{kind}_token", f"{marks}_eos_token")
            return "".join(named[each] for each in parts)

        return first + (
            ((_WITH_TOOLS if self.tools else _TEMPLATE) + _REPLY)
            .replace("AUDIO", marked("audio", "audio"))
            .replace("IMAGE", marked("image", "vision"))
            .replace("VIDEO", marked("video", "vision"))
        )

    def save(
        self,
        directory: Path,
        vocab: dict[str, int],
        merges: list[tuple[str, str]],
        added: Sequence[str] = (),
    ) -> Any:
        """Write a `Qwen2Tokenizer` with these tokens and the family's own, and its chat template.

        `added` contains additional tokens that decoding keeps.
        """
        from transformers import AddedToken, Qwen2Tokenizer

        tokenizer = Qwen2Tokenizer(
            vocab=vocab,
            merges=merges,  # type: ignore[arg-type]  # pairs, as tokenizer.json holds them
            add_prefix_space=False,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            model_max_length=32768,
            chat_template=self.chat_template,
            extra_special_tokens=dict(self.named),
        )
        tokenizer.add_tokens([AddedToken(each, special=True) for each in self.special])
        plain = (*PLAIN_ADDED_TOKENS, *added)
        tokenizer.add_tokens([AddedToken(each, special=False) for each in plain])
        tokenizer.save_pretrained(directory)
        # Releases before transformers 5 look for the template in this file.
        update_json(directory / "tokenizer_config.json", {"chat_template": self.chat_template})
        return tokenizer

    def write(
        self, directory: Path, added: Sequence[str] = (), *, entries: int = 0
    ) -> TinyVocabulary:
        """Write the tokenizer for `WORDS` and for the `added` tokens, and return its vocabulary.

        `entries` is the minimum number of entries in the byte-level BPE.
        """
        tokenizer = self.save(directory, *tiny_vocabulary(entries), added)
        tokenizer.backend_tokenizer.model.save(str(directory))
        return TinyVocabulary.of(tokenizer)


@dataclass(frozen=True, slots=True)
class TinyVocabulary:
    """The ID of each token. `added` tokens don't correspond to any text of the byte-level BPE."""

    ids: dict[str, int]
    size: int
    added: frozenset[str]

    @classmethod
    def of(cls, tokenizer: Any) -> TinyVocabulary:
        """Return the vocabulary of a transformers tokenizer."""
        return cls(tokenizer.get_vocab(), len(tokenizer), frozenset(tokenizer.get_added_vocab()))

    def spoken(self, *, raw_bytes: bool) -> list[int]:
        """Return the IDs that can occur in a reply, in ascending order.

        Special tokens and control characters are excluded. If `raw_bytes` is true, single bytes
        above 127 are included, so that replies contain incomplete characters.
        """
        byte_of = {char: byte for byte, char in enumerate(_byte_characters())}
        return [
            index
            for token, index in sorted(self.ids.items(), key=lambda item: item[1])
            if token not in self.added
            and (
                len(token) > 1
                or 0x20 <= byte_of[token] < 0x7F
                or (raw_bytes and byte_of[token] >= 0x80)
            )
        ]


@dataclass(frozen=True, slots=True)
class TinyPreprocessor:
    """The differences between the preprocessors of families, which are how images are normalized
    and divided into patches.
    """

    processor_class: str
    patch_size: int
    image_mean: tuple[float, float, float]
    image_std: tuple[float, float, float]

    def write(self, directory: Path) -> None:
        """Write `preprocessor_config.json`, with 128 mel bins at 16 kHz and the image settings."""
        from transformers import WhisperFeatureExtractor

        extractor = WhisperFeatureExtractor(  # type: ignore[no-untyped-call]
            feature_size=128,
            sampling_rate=16000,
            chunk_length=300,
            return_attention_mask=True,
        )
        extractor.save_pretrained(directory)
        image = {
            "image_processor_type": "Qwen2VLImageProcessor",
            "merge_size": 2,
            "temporal_patch_size": 2,
            "min_pixels": 3136,
            "max_pixels": 12845056,
        }
        update_json(directory / "preprocessor_config.json", image | dataclasses.asdict(self))


def update_json(path: Path, values: Mapping[str, Any]) -> None:
    """Add or replace top-level values of a JSON file."""
    content = json.loads(path.read_text()) | dict(values)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_slow_tokenizer(
    directory: Path, special: Sequence[str], plain: Sequence[str]
) -> dict[str, int]:
    """Write the files of a slow `Qwen2Tokenizer` with these added tokens, and return the ID of each
    token.

    There is no `tokenizer.json`, so any release of transformers creates the fast tokenizer from the
    vocabulary and merges.
    """
    ids, merges = tiny_vocabulary()
    (directory / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False) + "\n")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (directory / "merges.txt").write_text("\n".join(lines) + "\n")
    added = {token: len(ids) + index for index, token in enumerate((*special, *plain))}
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(index): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token in special,
            }
            for token, index in added.items()
        },
        "additional_special_tokens": [each for each in special if each != "<|endoftext|>"],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    return ids | added


def write_tokenizer_json(
    directory: Path, special: Sequence[str], settings: Mapping[str, Any]
) -> dict[str, int]:
    """Write `tokenizer.json` and `tokenizer_config.json`, and return the ID of each token.

    The checkpoint's own tokenizer class isn't needed to load them. `settings` are the fields of
    `tokenizer_config.json`, except for the added tokens.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    ids, merges = tiny_vocabulary()
    made: Any = Tokenizer(models.BPE(vocab=ids, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in special])
    made.save(str(directory / "tokenizer.json"))
    added = {token: made.token_to_id(token) for token in special}
    decoder = {
        str(id_): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token, id_ in added.items()
    }
    config = {"added_tokens_decoder": decoder, "clean_up_tokenization_spaces": False, **settings}
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    return ids | added


def tiny_vocabulary(entries: int = 0) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the vocabulary and the merges of the BPE, in which each word is built from left to
    right.

    If there are fewer than `entries` entries, others are added that can't result from a merge. They
    can still be drawn and decoded.
    """
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
    for number in range(len(vocab), entries):
        vocab[f"q{number}"] = number
    return vocab, merges


def _byte_characters() -> list[str]:
    """Return the printable character that represents each byte, as in GPT-2's
    `bytes_to_unicode`.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]
