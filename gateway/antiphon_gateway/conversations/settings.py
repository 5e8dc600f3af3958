"""The settings of a conversation or a single response. This module performs no I/O."""

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
    """How soon an answer can start after a pause that might not be the end of the turn."""

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
"""The number of seconds that the silence must last for each level of eagerness. The meaning of the
speech isn't taken into account.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticTurns(VoiceTurns):
    """Turn detection based on voice activity. The eagerness determines how long the silence must
    last.
    """

    eagerness: Eagerness


FUNCTION = "function:"
MOST_STAGES = 16
"""The maximum number of stages with separate sampling settings."""
_BY_VOICE = VoiceTurns()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSettings(HeldSettings):
    """The settings of a conversation or a single response, including settings that only the gateway
    uses.

    If `max_output_tokens` is None, there is no limit. `output_rate_hz` is the model's sample rate.
    If output is `spoken`, its text is included as a transcript. The format settings describe the
    client's input and output audio. The endpoint converts between these formats and the model's
    formats. If the model `hears`, it also transcribes the user's speech when `transcripts` are
    requested. If it `takes_tools`, it can be offered functions.

    A model that `reads_aloud` speaks the user's text verbatim, without generating any text itself.
    If it supports `voice_instructions`, then `instructions` describes how to speak. Otherwise, it
    has no instructions.

    If `timeline` is true, each response is followed by an event with the times of its stages. If
    `stopping` is true, clients that use OpenAI's API are notified of a shutdown by an event that
    isn't part of that API.

    `options` contains the model's options, with recordings as files. `sampling` contains settings
    by stage, as in an order. For the stage that reads the messages, `max_output_tokens` takes
    precedence. `tools` has the same format as in `Conversation`. `tool_choice` is "none", "auto",
    "required", or `FUNCTION` and the name of a function.
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
        """The settings for voice activity detection, or None if it isn't used."""
        return self.turns if isinstance(self.turns, VoiceTurns) else None

    @property
    def answer_every_s(self) -> float | None:
        """The duration of a timed turn in seconds, or None if turns aren't timed."""
        return self.turns.answer_every_s if isinstance(self.turns, TimedTurns) else None

    @property
    def outputs(self) -> frozenset[str]:
        """The outputs to request from the stages."""
        if self.reads_aloud:
            return frozenset({AUDIO})
        return frozenset({TEXT, AUDIO}) if self.spoken else frozenset({TEXT})

    @property
    def order_sampling(self) -> dict[str, SamplingRequest]:
        """The sampling settings to request from the stages."""
        reading = self.sampling.get(INPUT_STAGE, SamplingRequest())
        if self.max_output_tokens is not None:
            reading = replace(reading, max_tokens=self.max_output_tokens)
        return {**self.sampling, INPUT_STAGE: reading}

    @property
    def order_options(self) -> dict[str, OptionInput]:
        """The options to request from the stages."""
        return {
            name: Recording(f"options.{name}", value) if isinstance(value, bytes) else value
            for name, value in self.options.items()
        }

    @property
    def options_bytes(self) -> int:
        """The size of the options that the client has sent, in bytes."""
        if not self.options:
            return 0
        return sum(len(each) for each in self.options.values() if isinstance(each, str | bytes))

    def with_options(self, given: Mapping[str, str | float | bytes | None]) -> ConversationSettings:
        """Return the settings with these options added or replaced. If the value of an option is
        None, the option is removed.

        Raises `InvalidArgument` if there are too many options.
        """
        options = {n: v for n, v in {**self.options, **given}.items() if v is not None}
        if len(options) > MAX_OPTIONS:
            raise InvalidArgument(
                f"options: must have at most {MAX_OPTIONS} entries", field="options"
            )
        return replace(self, options=options)

    def with_sampling(self, given: Mapping[str, SamplingRequest]) -> ConversationSettings:
        """Return the settings with new sampling settings for these stages. If the new settings are
        empty, the stage's settings are removed.

        Raises `InvalidArgument` if there are too many stages.
        """
        sampling = {n: v for n, v in {**self.sampling, **given}.items() if v != SamplingRequest()}
        if len(sampling) > MOST_STAGES:
            raise InvalidArgument(
                f"sampling: must have at most {MOST_STAGES} stages", field="sampling"
            )
        return replace(self, sampling=sampling)

    @property
    def offered(self) -> tuple[tuple[str, ...], ToolChoice]:
        """The functions that a response can call and the rules for calling them. Raises
        `InvalidArgument` if they are invalid.
        """
        choice, parallel = self.tool_choice, self.parallel_calls
        if choice.startswith(FUNCTION):
            name = choice.removeprefix(FUNCTION)
            return choose_tools(self.tools, "function", name, parallel=parallel)
        return choose_tools(self.tools, choice, "", parallel=parallel)

    def check_hears(self, field: str) -> None:
        """Raise `InvalidArgument` with this field if the model doesn't accept audio."""
        if not self.hears:
            raise InvalidArgument(
                f"{field}: the model {self.model!r} doesn't accept audio; send a user item with "
                "text",
                field=field,
            )

    def with_spoken(self, spoken: bool) -> ConversationSettings:
        """Return the settings with either spoken or written answers. A model that reads text aloud
        always speaks.
        """
        return replace(self, spoken=spoken or self.reads_aloud)

    def with_instructions(self, text: str) -> ConversationSettings:
        """Return the settings with these instructions. They are ignored if the model reads text
        aloud without supporting `voice_instructions`.
        """
        has_none = self.reads_aloud and not self.voice_instructions
        return replace(self, instructions="" if has_none else text)

    def with_turns(self, turns: VoiceTurns | TimedTurns | None) -> ConversationSettings:
        """Return the settings with this type of turn detection.

        If the model doesn't accept audio, voice activity detection is turned off. Timed turns are
        rejected later, when the settings are applied.
        """
        has_none = not self.hears and isinstance(turns, VoiceTurns)
        return replace(self, turns=None if has_none else turns)

    def with_voice(self, name: str) -> ConversationSettings:
        """Return the settings with this voice.

        If the name isn't known, the voice remains unchanged. Clients may request voices of other
        servers, and some of them would stop after an error. If the model reads text aloud, ""
        represents the default voice.
        """
        voice = self.voice_aliases.get(name.lower(), name.lower())
        is_default = not voice and self.reads_aloud
        return replace(self, voice=voice) if voice in self.voices or is_default else self


def own_settings(settings: HeldSettings) -> ConversationSettings:
    """Return the settings of a command or event that was created by this gateway."""
    assert isinstance(settings, ConversationSettings)
    return settings
