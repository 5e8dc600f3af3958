"""The model families that can be verified and how they differ from each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon.errors import InvalidArgument
from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.mimo_audio import GROUP_FRAMES
from antiphon.pipelines.mimo_audio import PIPELINE as MIMO
from antiphon.pipelines.ming_flash_omni import PIPELINE as MING_FLASH
from antiphon.pipelines.ming_tts import LATENTS, TALKER_FOLDER
from antiphon.pipelines.ming_tts import PIPELINE as MING
from antiphon.pipelines.qwen2_5_omni import PIPELINE as OMNI25
from antiphon.pipelines.qwen3_omni import PIPELINE as OMNI3
from antiphon.pipelines.qwen3_tts import PIPELINE as TTS
from antiphon.values.options import SPEECH, TASK, TRANSCRIPTION

CODES = "codes"


@dataclass(frozen=True, slots=True)
class Family:
    """A model family and the roles of the stages that generate `text`, frames and audio.

    `text` is empty if there is no text. The same stage can generate text and frames. `frames` is
    the edge that carries the frames, and `step` is the number of frames that are drawn at once. A
    family that `reads_aloud` is given sentences to speak, with the options `speaking`. transformers
    has no class for these families, so their reference is antiphon in float32. A family that
    `hears` can transcribe recordings. It is given the options `transcribing`, or an instruction if
    there are none.
    """

    pipeline: Pipeline
    text: str
    codes: str
    audio: str
    frames: str = CODES
    step: int = 1
    reads_aloud: bool = False
    hears: bool = False
    speaking: Mapping[str, str | float] = field(default_factory=dict)
    transcribing: Mapping[str, str | float] = field(default_factory=dict)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the stages, without duplicates, in the order in which they run."""
        return tuple(dict.fromkeys(filter(None, (self.text, self.codes, self.audio))))

    @property
    def mixes(self) -> bool:
        """Whether one stage generates both text and frames."""
        return self.text == self.codes

    def context_of(self, role: str, positions: int) -> int | None:
        """Return the `context_limit` that a stage needs for segments with this many positions.

        It is None for a decoder of float frames, because the checkpoint limits its number of
        frames.
        """
        return None if role == self.audio and self.draws_floats else positions

    @property
    def draws_floats(self) -> bool:
        """Whether frames consist of floats."""
        return self.frames != CODES


FAMILIES = {
    each.pipeline.name: each
    for each in (
        Family(OMNI3, "thinker", "talker", "code2wav", hears=True),
        Family(OMNI25, "thinker", "talker", "token2wav", hears=True),
        Family(TTS, "", "talker", "code2wav", reads_aloud=True),
        Family(
            MIMO,
            "talker",
            "talker",
            "code2wav",
            step=GROUP_FRAMES,
            reads_aloud=True,
            hears=True,
            speaking={TASK: SPEECH, "code_temperature": 0.0},
            transcribing={TASK: TRANSCRIPTION},
        ),
        Family(MING, "", "talker", "code2wav", frames=LATENTS, reads_aloud=True),
    )
}
"""The families by the names of their pipelines."""


def family_of(pipeline: Pipeline, model: object) -> Family:
    """Return the family of a checkpoint. Raises `InvalidArgument` if it cannot be verified."""
    if pipeline.name not in FAMILIES:
        remedy = ""
        if pipeline is MING_FLASH:
            remedy = f"; to verify its talker, use {model}/{TALKER_FOLDER}"
        raise InvalidArgument(
            f"{model}: verification supports {', '.join(FAMILIES)}, but not {pipeline.name}"
            f"{remedy}",
            field="model",
        )
    return FAMILIES[pipeline.name]
