"""A loaded talker, and requests to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.cosyvoice3 import CODES, INPUT, TALKER, VOICE
from antiphon.pipelines.edges import PIECE
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.options import OptionValue
from antiphon.values.sampling import Sampling, stream_key
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.cosyvoice3.talker.engine import SpeechTalkerEngine
from antiphon_services.cosyvoice3.talker.load import LAYERS_FOLDER, load
from antiphon_services.cosyvoice3.talker.tokenizer import load_speech_tokenizer
from antiphon_services.text.literal import LiteralTokenizer
from antiphon_testkit.drive_engine import SegmentOutput, run_segments
from tests.equality.cosyvoice3.cosy_cases import (
    CROSS_LINGUAL,
    INSTRUCT,
    INSTRUCTION,
    REFERENCE_TEXT,
    SFT,
    ZERO_SHOT,
    reference_audio,
)

SLOTS, LIMIT = 4, 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: a text in a mode, or by a voice of the checkpoint, how codes are drawn, and other
    options."""

    text: str
    mode: str = SFT
    seed: int = 0
    changes: dict[str, float] = field(default_factory=dict)
    options: dict[str, OptionValue] = field(default_factory=dict)
    voice: str = ""


class TalkerLab:
    """One checkpoint's engine."""

    def __init__(self, path: Path, *, limit: int = LIMIT, slots: int = SLOTS) -> None:
        stage = load(path, StageConfig(slots=slots, context_limit=limit))
        assert isinstance(stage.engine, SpeechTalkerEngine)
        self.engine, self.facts = stage.engine, stage.facts
        self._path = path

    @cached_property
    def tokenizer(self) -> LiteralTokenizer:
        """The tokenizer of its checkpoint."""
        return load_speech_tokenizer(self._path / LAYERS_FOLDER, sys.maxsize)

    def settings(self, asked: Asked) -> SegmentSettings:
        """What a segment is opened with."""
        seeded = replace(self.facts.default_sampling, seed=stream_key(asked.seed, TALKER))
        sampling: Sampling = replace(seeded, **asked.changes)  # type: ignore[arg-type]
        voice = asked.voice or ("alto" if asked.mode == SFT else "")
        outputs = frozenset({VOICE, CODES})
        options = asked.options if asked.voice else options_of(asked.mode) | asked.options
        return SegmentSettings(voice, sampling, outputs, options)

    def speak_pieces(self, *asked: tuple[Asked, Sequence[bytes]]) -> list[SegmentOutput]:
        """The answers to requests whose texts come in these pieces, a round after the other."""
        keys = [SegmentKey("pieces", index) for index in range(len(asked))]
        given = {
            key: (self.settings(each), pieces_of(cut))
            for key, (each, cut) in zip(keys, asked, strict=True)
        }
        outputs = run_segments(self.engine, given)
        return [outputs[key] for key in keys]

    def speak(self, *asked: Asked) -> list[SegmentOutput]:
        """The answers to requests that are made together."""
        keys = [SegmentKey("asked", index) for index in range(len(asked))]
        given = {
            key: (self.settings(each), [message(each.text)])
            for key, each in zip(keys, asked, strict=True)
        }
        outputs = run_segments(self.engine, given)
        return [outputs[key] for key in keys]


def options_of(mode: str) -> dict[str, OptionValue]:
    """The options that ask for a mode."""
    if mode == SFT:
        return {}
    samples = reference_audio().astype(np.float32) / 32768
    # As it comes in a message, not writable.
    sound: OptionValue = np.frombuffer(samples.tobytes(), np.float32)
    more: dict[str, dict[str, OptionValue]] = {
        ZERO_SHOT: {"reference_text": REFERENCE_TEXT},
        CROSS_LINGUAL: {},
        INSTRUCT: {"instruction": INSTRUCTION},
    }
    return {"reference_audio": sound, **more[mode]}


def message(text: str) -> InputChunk:
    """A text to read, all of it."""
    content = Conversation((ConversationMessage("user", (TextPart(text),)),))
    return InputChunk(INPUT, 0, to_tensors(content), True, FinishReason.STOP)


def piece(utf8: bytes, *, last: bool = False) -> InputChunk:
    """A piece of a text."""
    tensors = {PIECE: np.frombuffer(utf8, np.uint8)}
    return InputChunk(INPUT, 0, tensors, last, FinishReason.STOP if last else None)


def pieces_of(cut: Sequence[bytes]) -> list[InputChunk]:
    """The pieces of a text, of which the last one ends it."""
    return [piece(each, last=at == len(cut)) for at, each in enumerate(cut, 1)]


def codes_of(output: SegmentOutput) -> list[int]:
    """The codes of an answer, which must have ended well and in order."""
    assert output.failed is None, output.failed
    assert output.completed is not None
    made = [each for each in output.emitted if each.edge == CODES and each.tensors]
    assert [each.position for each in made] == list(range(len(made)))
    assert output.completed.output_positions == len(made)
    return [int(each.tensors[CODES][0, 0]) for each in made]


def voice_of(output: SegmentOutput) -> dict[str, Tensor]:
    """The voice of an answer, which must have left once and first."""
    first, *rest = output.emitted
    assert first.edge == VOICE
    assert not [each for each in rest if each.edge == VOICE]
    assert first.finish_reason is FinishReason.STOP
    return dict(first.tensors)
