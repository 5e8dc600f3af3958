"""A loaded talker, and requests to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.ming_tts import INPUT, LATENTS, TALKER
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.history import History
from antiphon.values.options import OptionValue
from antiphon.values.sampling import Sampling, stream_key
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.ming_tts.talker.engine import MingTalkerEngine
from antiphon_services.ming_tts.talker.load import load
from antiphon_testkit.drive_engine import SegmentOutput, run_segments

SLOTS, LIMIT = 8, 512

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: a text, how latents are drawn, options, and latents that its client has."""

    text: str = "How are you today?"
    seed: int = 0
    voice: str = ""
    changes: dict[str, float] = field(default_factory=dict)
    options: dict[str, OptionValue] = field(default_factory=dict)
    known: Floats | None = None


class TalkerLab:
    """One checkpoint's engine."""

    def __init__(self, path: Path, *, limit: int = LIMIT, dtype: str | None = None) -> None:
        stage = load(path, StageConfig(slots=SLOTS, context_limit=limit, dtype=dtype))
        assert isinstance(stage.engine, MingTalkerEngine)
        self.engine, self.facts = stage.engine, stage.facts

    def settings(self, asked: Asked) -> SegmentSettings:
        """What a segment is opened with."""
        seeded = replace(self.facts.default_sampling, seed=stream_key(asked.seed, TALKER))
        sampling: Sampling = replace(seeded, **asked.changes)  # type: ignore[arg-type]
        history = None if asked.known is None else History(latents=asked.known)
        outputs = frozenset({LATENTS})
        return SegmentSettings(asked.voice, sampling, outputs, asked.options, history=history)

    def speak(self, *asked: Asked) -> list[SegmentOutput]:
        """The answers to requests that are made together."""
        keys = [SegmentKey("asked", index) for index in range(len(asked))]
        given = {
            key: (self.settings(each), [message(each.text)])
            for key, each in zip(keys, asked, strict=True)
        }
        outputs = run_segments(self.engine, given)
        return [outputs[key] for key in keys]


def message(text: str) -> InputChunk:
    """A text to read, all of it."""
    content = Conversation((ConversationMessage("user", (TextPart(text),)),))
    return InputChunk(INPUT, 0, to_tensors(content), True, FinishReason.STOP)


def latents_of(output: SegmentOutput) -> Floats:
    """The frames of an answer, which must have ended well and in order."""
    assert output.failed is None, output.failed
    assert output.completed is not None
    made = [each for each in output.emitted if each.tensors]
    frames = np.concatenate([each.tensors[LATENTS] for each in made])
    starts = np.cumsum([0, *(len(each.tensors[LATENTS]) for each in made)])
    assert [each.position for each in made] == starts[:-1].tolist()
    assert output.completed.output_positions == len(frames)
    assert output.finish_reason(LATENTS) is output.completed.finish_reason
    return frames
