"""The families that can be verified, and what differs between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon.errors import InvalidArgument
from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.mimo_audio import GROUP_FRAMES
from antiphon.pipelines.mimo_audio import PIPELINE as MIMO
from antiphon.pipelines.ming_tts import LATENTS
from antiphon.pipelines.ming_tts import PIPELINE as MING
from antiphon.pipelines.qwen2_5_omni import PIPELINE as OMNI25
from antiphon.pipelines.qwen3_omni import PIPELINE as OMNI3
from antiphon.pipelines.qwen3_tts import PIPELINE as TTS
from antiphon.values.options import SPEECH, TASK, TRANSCRIPTION

CODES = "codes"


@dataclass(frozen=True, slots=True)
class Family:
    """A family, and the roles of its stages that make `text` (empty if none does), frames and
    audio; one may make text and frames.

    `frames` is the edge of the frames, `step` how many of them are drawn at once. A family that
    `reads_aloud` is given sentences, with the options `speaking`, and its reference is antiphon in
    float32: transformers has no class for it. One that `hears` transcribes recordings, with the
    options `transcribing`, or because it is asked to in words.
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
        """Each stage once, in the order of the work."""
        return tuple(dict.fromkeys(filter(None, (self.text, self.codes, self.audio))))

    @property
    def mixes(self) -> bool:
        """Whether text and frames are one stage's."""
        return self.text == self.codes

    def context_of(self, role: str, positions: int) -> int | None:
        """`context_limit` of a stage for segments of so many positions.

        A decoder of floats counts frames, and its checkpoint limits them: None.
        """
        return None if role == self.audio and self.draws_floats else positions

    @property
    def draws_floats(self) -> bool:
        """Whether frames are of floats."""
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
"""By the names of their pipelines."""


def family_of(pipeline: Pipeline, model: object) -> Family:
    """The family of a checkpoint. Raises `InvalidArgument` if it cannot be verified."""
    if pipeline.name not in FAMILIES:
        raise InvalidArgument(
            f"{model}: verification knows {', '.join(FAMILIES)}, and this is a checkpoint of "
            f"{pipeline.name}",
            field="model",
        )
    return FAMILIES[pipeline.name]
