"""What holds in a conversation, or for one response. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.outputs import AUDIO, TEXT


@dataclass(frozen=True, slots=True)
class ConversationSettings:
    """Settings of a conversation, or of one response. `max_output_tokens` None: no limit of theirs.

    What is `spoken` has its text, too, as a transcript.
    """

    model: str
    voices: tuple[str, ...]
    spoken: bool = True
    voice: str = ""
    instructions: str = ""
    max_output_tokens: int | None = None

    @property
    def outputs(self) -> frozenset[str]:
        """The outputs to ask the stages for."""
        return frozenset({TEXT, AUDIO}) if self.spoken else frozenset({TEXT})

    def with_voice(self, name: str) -> ConversationSettings:
        """With that voice. Where there is none of that name the one that holds stays: clients ask
        for the voices that they know, and an error would end some of them."""
        voice = name.lower()
        return replace(self, voice=voice) if voice in self.voices else self
