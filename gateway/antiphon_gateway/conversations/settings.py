"""What holds in a conversation, or for one response. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from antiphon.errors import InvalidArgument
from antiphon.values.conversation import ToolChoice
from antiphon.values.live_conversation import HeldSettings, TimedTurns, VoiceTurns
from antiphon.values.sampling import INPUT_STAGE, SamplingRequest
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.media.live_audio import PCM16, LiveFormat
from antiphon_gateway.media.options_in import MAX_OPTIONS, OptionInput
from antiphon_gateway.orders.tools import choose_tools
from antiphon_gateway.outputs import AUDIO, TEXT


class Eagerness(enum.Enum):
    """How soon an answer may come where a pause need not be the end of a turn."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    AUTO = "auto"


EAGER_SILENCE_S = {
    Eagerness.LOW: 1.2,
    Eagerness.MEDIUM: 0.7,
    Eagerness.AUTO: 0.7,
    Eagerness.HIGH: 0.4,
}
"""There is no model of what is meant: eagerness is a length of silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticTurns(VoiceTurns):
    """Turns by voice, whose silence follows from an eagerness."""

    eagerness: Eagerness


FUNCTION = "function:"
MOST_STAGES = 16
"""With sampling of their own."""
_BY_VOICE = VoiceTurns()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSettings(HeldSettings):
    """Settings of a conversation or of one response, including those that only the gateway uses.

    `max_output_tokens` of None means no limit. `output_rate_hz` is the rate of the model. `spoken`
    output also has its text, as a transcript. The formats are those of the client's input and
    output audio; the endpoint converts. A model that `hears` transcribes the user's speech if
    `transcripts` are requested. Functions can be offered to a model that `takes_tools`.

    A model that `reads_aloud` speaks the user's text unchanged, and generates no text. Its
    `instructions` describe the speech if it supports `voice_instructions`; otherwise it has none.

    With `timeline`, the durations of the stages follow each end of a response. With `stopping`, a
    client of OpenAI's API receives an event at shutdown that OpenAI does not have.

    `options` are those of the model, with the files of recordings. `sampling` is by stage, as in an
    order; `max_output_tokens` takes precedence over its value for the stage that reads the
    messages. `tools` are those of `Conversation`; `tool_choice` is "none", "auto", "required", or
    `FUNCTION` and the name of one.
    """

    model: str
    voices: tuple[str, ...]
    output_rate_hz: int
    voice_aliases: Mapping[str, str] = field(default_factory=dict)
    max_output_tokens: int | None = None
    turns: VoiceTurns | TimedTurns | None = _BY_VOICE
    input_format: LiveFormat = PCM16
    output_format: LiveFormat = PCM16
    hears: bool = True
    takes_tools: bool = True
    reads_aloud: bool = False
    voice_instructions: bool = True
    timeline: bool = False
    stopping: bool = False
    tools: tuple[str, ...] = ()
    tool_choice: str = "auto"
    parallel_calls: bool = True

    @property
    def voice_turns(self) -> VoiceTurns | None:
        """How turns are detected; None if they are not."""
        return self.turns if isinstance(self.turns, VoiceTurns) else None

    @property
    def answer_every_s(self) -> float | None:
        """Seconds of audio that are a turn; None if the clock ends none."""
        return self.turns.answer_every_s if isinstance(self.turns, TimedTurns) else None

    @property
    def outputs(self) -> frozenset[str]:
        """The outputs to ask the stages for."""
        if self.reads_aloud:
            return frozenset({AUDIO})
        return frozenset({TEXT, AUDIO}) if self.spoken else frozenset({TEXT})

    @property
    def order_sampling(self) -> dict[str, SamplingRequest]:
        """The sampling to ask the stages for."""
        reading = self.sampling.get(INPUT_STAGE, SamplingRequest())
        if self.max_output_tokens is not None:
            reading = replace(reading, max_tokens=self.max_output_tokens)
        return {**self.sampling, INPUT_STAGE: reading}

    @property
    def order_options(self) -> dict[str, OptionInput]:
        """The options to ask the stages for."""
        return {
            name: Recording(f"options.{name}", value) if isinstance(value, bytes) else value
            for name, value in self.options.items()
        }

    @property
    def options_bytes(self) -> int:
        """How much of what the client sent the options hold."""
        return sum(len(each) for each in self.options.values() if isinstance(each, str | bytes))

    def with_options(self, given: Mapping[str, str | float | bytes | None]) -> ConversationSettings:
        """With these options in place of those of the same names; None removes one. Raises
        `InvalidArgument` for more than there may be."""
        options = {n: v for n, v in {**self.options, **given}.items() if v is not None}
        if len(options) > MAX_OPTIONS:
            raise InvalidArgument(f"options: more than {MAX_OPTIONS} of them", field="options")
        return replace(self, options=options)

    def with_sampling(self, given: Mapping[str, SamplingRequest]) -> ConversationSettings:
        """With this sampling in place of that of the same stages; one without settings removes it.
        Raises `InvalidArgument` for more stages than there may be."""
        sampling = {n: v for n, v in {**self.sampling, **given}.items() if v != SamplingRequest()}
        if len(sampling) > MOST_STAGES:
            raise InvalidArgument(f"sampling: more than {MOST_STAGES} stages", field="sampling")
        return replace(self, sampling=sampling)

    @property
    def offered(self) -> tuple[tuple[str, ...], ToolChoice]:
        """The functions that a response may call, and how. Raises `InvalidArgument`."""
        choice, parallel = self.tool_choice, self.parallel_calls
        if choice.startswith(FUNCTION):
            name = choice.removeprefix(FUNCTION)
            return choose_tools(self.tools, "function", name, parallel=parallel)
        return choose_tools(self.tools, choice, "", parallel=parallel)

    def check_hears(self, field: str) -> None:
        """Raise `InvalidArgument` for audio in that field if the model takes none."""
        if not self.hears:
            raise InvalidArgument(
                f"{field}: the model {self.model!r} takes no audio; send text in an item of the "
                "user",
                field=field,
            )

    def with_spoken(self, spoken: bool) -> ConversationSettings:
        """With spoken or written answers. A model that reads aloud always speaks."""
        return replace(self, spoken=spoken or self.reads_aloud)

    def with_instructions(self, text: str) -> ConversationSettings:
        """With these instructions. A model that reads aloud without `voice_instructions` keeps
        none."""
        has_none = self.reads_aloud and not self.voice_instructions
        return replace(self, instructions="" if has_none else text)

    def with_turns(self, turns: VoiceTurns | TimedTurns | None) -> ConversationSettings:
        """With turns that end so. A model that takes no audio has no turns by voice; turns by the
        clock are rejected when the settings are applied."""
        has_none = not self.hears and isinstance(turns, VoiceTurns)
        return replace(self, turns=None if has_none else turns)

    def with_voice(self, name: str) -> ConversationSettings:
        """Return the settings with this voice.

        An unknown name keeps the current voice: clients request the voices that they know, and an
        error would end some of them. "" is the default voice of a model that reads aloud.
        """
        voice = self.voice_aliases.get(name.lower(), name.lower())
        is_default = not voice and self.reads_aloud
        return replace(self, voice=voice) if voice in self.voices or is_default else self


def own_settings(settings: HeldSettings) -> ConversationSettings:
    """The settings of a command or event of this gateway."""
    assert isinstance(settings, ConversationSettings)
    return settings
