"""Builds the prompt of Qwen3-TTS's talker as a sequence of IDs. This module doesn't import torch.

Each row of the prompt is the sum of a text side and, after the role, a codec side:

    text   instruction  role x 3  pad ...                               bos  first text
    codec                         think, think_bos, language, think_eos,
                                  or nothink, think_bos, think_eos;
                                  speaker                               pad  bos

Each later step adds a row whose codec side is the previous frame. Its text side is the next text
ID, then eos once, and pad after that. This is the trailing mode.

If the whole text comes first instead, the first text ID is replaced by the whole text and eos, all
with codec pad. The next row has text pad and codec bos, and all later rows have text pad.

A clone that is based on codes also has a reference. Its text comes before the text to speak, and
its frames come after codec bos. In the trailing mode, its text and frames share rows. This mirrors
`Qwen3TTSForConditionalGeneration.generate` and `generate_icl_prompt` in the vendor's package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from antiphon.errors import FailedPrecondition, InvalidArgument, told
from antiphon.pipelines.files import CONFIG_FILE, REMEDY

# Codec sides that are not IDs.
NOTHING, SPEAKER, FRAME = -1, -2, -3

ROLE_ROWS = 3
CHINESE = "chinese"

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SpeechIds:
    """The IDs in the text and codec vocabularies that a prompt needs. They are read from
    `config.json`.

    `im_start` and `im_end` are the text IDs at the beginning and end of a turn. `voices` maps
    speaker names in lower case to IDs, and `languages` maps language names to IDs. If a voice
    speaks a dialect, `dialects` maps the voice to the dialect's language.
    """

    im_start: int
    im_end: int

    tts_pad: int
    tts_bos: int
    tts_eos: int
    pad: int
    bos: int
    stop: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int
    languages: Mapping[str, int]
    voices: Mapping[str, int]
    dialects: Mapping[str, str]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SpeechIds:
        """Read the IDs from a checkpoint's `config.json`. Raises `FailedPrecondition` if any of
        them is missing.
        """
        talker = config.get("talker_config") or {}
        ids = cls(
            im_start=_id(config, "im_start_token_id"),
            im_end=_id(config, "im_end_token_id"),
            tts_pad=_id(config, "tts_pad_token_id"),
            tts_bos=_id(config, "tts_bos_token_id"),
            tts_eos=_id(config, "tts_eos_token_id"),
            pad=_id(talker, "codec_pad_id"),
            bos=_id(talker, "codec_bos_id"),
            stop=_id(talker, "codec_eos_token_id"),
            think=_id(talker, "codec_think_id"),
            nothink=_id(talker, "codec_nothink_id"),
            think_bos=_id(talker, "codec_think_bos_id"),
            think_eos=_id(talker, "codec_think_eos_id"),
            languages=_named(talker, "codec_language_id"),
            voices=_named(talker, "spk_id"),
            dialects={
                voice: dialect
                for voice, dialect in _named(talker, "spk_is_dialect").items()
                if dialect
            },
        )
        if unknown := set(ids.dialects.values()) - ids.languages.keys():
            raise FailedPrecondition(
                f"{CONFIG_FILE}: spk_is_dialect contains {told(sorted(unknown))}, which "
                f"codec_language_id doesn't; {REMEDY}"
            )
        return ids

    @property
    def told_languages(self) -> tuple[str, ...]:
        """The languages that a request can specify. They don't include dialects, which are only
        available through their voices.
        """
        return tuple(name for name in self.languages if "dialect" not in name)

    def language(self, name: str, voice: str) -> int | None:
        """Return the ID of a language. If the name is empty, return the ID of the voice's dialect,
        or None if the voice doesn't have one.

        Raises `InvalidArgument` if the language is unknown.
        """
        if name and name not in self.told_languages:
            known = ", ".join(sorted(self.told_languages))
            raise InvalidArgument(
                f"options.language: unknown language {told(name)}; use one of: {known}",
                field="options.language",
            )
        if name in ("", CHINESE) and voice in self.dialects:
            name = self.dialects[voice]
        return self.languages[name] if name else None

    def voice(self, name: str) -> int:
        """Return the ID of a voice. Raises `InvalidArgument` if it is unknown."""
        if name not in self.voices:
            known = ", ".join(sorted(self.voices)) or "none"
            raise InvalidArgument(
                f"voice: unknown voice {told(name)}; use one of: {known}", field="voice"
            )
        return self.voices[name]


def _id(part: dict[str, Any], name: str) -> int:
    value = part.get(name)
    if not isinstance(value, int):
        raise FailedPrecondition(f"{CONFIG_FILE}: {name} is missing or not a token ID; {REMEDY}")
    return value


def _named(part: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a mapping from the configuration, with its keys in lower case, or an empty mapping if
    the configuration doesn't contain it.
    """
    value = part.get(name) or {}
    if not isinstance(value, dict):
        raise FailedPrecondition(f"{CONFIG_FILE}: {name} is not an object; {REMEDY}")
    return {key.lower(): each for key, each in value.items()}


@dataclass(frozen=True, slots=True)
class Clone:
    """A cloned voice, which consists of a speaker vector and, optionally, frames and their text.

    `frames` is uint16 [n, groups], and `text` contains the IDs of the text that these frames speak.
    """

    vector: npt.NDArray[np.float32]
    frames: npt.NDArray[np.uint16] | None = None
    text: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """The IDs of the text to speak, and the settings for speaking it. `role` contains the three IDs
    of an assistant header.

    All names are in lower case. `voice` and `language` may be empty, and `voice` is always empty
    for a clone.
    """

    role: Sequence[int]
    text: Sequence[int]
    instruction: Sequence[int] = ()
    voice: str = ""
    language: str = ""
    clone: Clone | None = None
    whole_text: bool = True


@dataclass(frozen=True, slots=True)
class Prompt:
    """Rows that consist of text IDs and of codec IDs or markers, and the text IDs of later rows.

    `frames` contains the frames for the rows marked with `FRAME`, in order. `vector` is used for
    the row marked with `SPEAKER`.
    """

    text: Ids
    codec: Ids
    later: Ids
    frames: npt.NDArray[np.uint16] | None = None
    vector: npt.NDArray[np.float32] | None = None

    @property
    def positions(self) -> int:
        """The number of rows, including the rows for later text IDs."""
        return len(self.text) + len(self.later)

    def beside(self, draw: int) -> int | None:
        """Return the text ID in the row before draw number `draw`, or None for padding."""
        if draw == 0:
            return int(self.text[-1])
        return int(self.later[draw - 1]) if draw <= len(self.later) else None


@dataclass(slots=True)
class _Rows:
    text: list[int] = field(default_factory=list)
    codec: list[int] = field(default_factory=list)

    def add(self, text: Sequence[int], codec: Sequence[int]) -> None:
        self.text += text
        self.codec += codec


def make_prompt(request: SpeechRequest, ids: SpeechIds) -> Prompt:
    """Return the prompt for a request. Raises `InvalidArgument` if the request is not supported."""
    if len(request.role) != ROLE_ROWS or not request.text:
        raise InvalidArgument("messages: contain nothing to say", field="messages")
    clone = request.clone
    frames = None if clone is None else clone.frames
    rows = _Rows()
    opening = [*request.instruction, *request.role]
    rows.add(opening, [NOTHING] * len(opening))
    tags = _tags(request, ids)
    rows.add([ids.tts_pad] * (len(tags) - 1) + [ids.tts_bos], tags)
    said = [*(clone.text if clone and frames is not None else ()), *request.text, ids.tts_eos]
    heard = [ids.bos, *([FRAME] * (0 if frames is None else len(frames)))]
    if request.whole_text:
        rows.add(said, [ids.pad] * len(said))
        rows.add([ids.tts_pad] * len(heard), heard)
        later: list[int] = []
    else:
        beside = said[: len(heard)]
        rows.add(beside + [ids.tts_pad] * (len(heard) - len(beside)), heard)
        later = said[len(heard) :]
    return Prompt(
        np.array(rows.text, np.int64),
        np.array(rows.codec, np.int64),
        np.array(later, np.int64),
        frames,
        None if clone is None else clone.vector,
    )


def _tags(request: SpeechRequest, ids: SpeechIds) -> list[int]:
    """Return the codec sides of the rows before the text: language, speaker and pad."""
    language = ids.language(request.language, request.voice)
    if language is None:
        tags = [ids.nothink, ids.think_bos, ids.think_eos]
    else:
        tags = [ids.think, ids.think_bos, language, ids.think_eos]
    if request.clone is not None:
        tags.append(SPEAKER)
    elif request.voice:
        tags.append(ids.voice(request.voice))
    return [*tags, ids.pad]
