"""Other names for the served model and its voices: the deployment's, and OpenAI's.

Many programs have OpenAI's names written into them, such as `whisper-1` or `alloy`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.deployment.schema import GatewayConfig

OPENAI_MODELS = (
    "tts-1",
    "tts-1-hd",
    "gpt-4o-mini-tts",
    "whisper-1",
    "gpt-transcribe",
    "gpt-live-transcribe",
    "gpt-4o-transcribe",
    "gpt-4o-transcribe-diarize",
    "gpt-4o-mini-transcribe",
    "gpt-realtime",
    "gpt-realtime-1.5",
    "gpt-realtime-2",
    "gpt-realtime-2.1",
    "gpt-realtime-2.1-mini",
    "gpt-realtime-mini",
    "gpt-realtime-whisper",
    "gpt-4o-realtime-preview",
    "gpt-4o-mini-realtime-preview",
    "gpt-audio",
    "gpt-audio-1.5",
    "gpt-audio-mini",
    "gpt-4o-audio-preview",
    "gpt-4o-mini-audio-preview",
    "gpt-image-1",
    "gpt-image-1-mini",
    "gpt-image-1.5",
    "dall-e-2",
    "dall-e-3",
    # Defaults for the chat between hearing and speaking, in Pipecat, LiveKit and openai-agents.
    "gpt-4.1",
    "gpt-4.1-mini",
    "gpt-4o",
    "gpt-4o-mini",
)
"""OpenAI's models that hear, speak or draw, and those that voice frameworks chat with by default.

A name with a date (`gpt-4o-mini-tts-2025-12-15`) is a snapshot: it is known, and not listed.
"""
_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")
OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "coral",
    "echo",
    "fable",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
    "cedar",
    "marin",
)
"""In the order in which they are shared out over a checkpoint's voices; new ones go to the end."""


@dataclass(frozen=True, slots=True)
class Names:
    """What `models` there are besides the served one's name, and the `voices` that the deployment
    has other names for. With `openai_voices` OpenAI's are names of voices, too."""

    models: tuple[str, ...] = ()
    voices: Mapping[str, str] = field(default_factory=dict)
    openai_voices: bool = False

    def has_model(self, name: str) -> bool:
        """Whether it is a name of the model, or a snapshot of one of OpenAI's."""
        if name in self.models:
            return True
        name = _SNAPSHOT.sub("", name)
        return name in OPENAI_MODELS and name in self.models

    def voice_aliases(self, voices: Sequence[str]) -> dict[str, str]:
        """The aliases, in lower case, of the checkpoint's voices.

        A checkpoint's own voice takes precedence over an alias with its name. Without voices,
        OpenAI's names are aliases of no voice ("").
        """
        aliases: dict[str, str] = {}
        if self.openai_voices:
            for at, name in enumerate(OPENAI_VOICES):
                aliases[name] = voices[at % len(voices)] if voices else ""
        for name, voice in self.voices.items():
            if voice.lower() in voices:
                aliases[name.lower()] = voice.lower()
        return {name: voice for name, voice in aliases.items() if name not in voices}


NO_OTHER_NAMES = Names()


def names_of(config: GatewayConfig) -> Names:
    """The names that a deployment gives."""
    preset = OPENAI_MODELS if config.names.openai_names else ()
    models = tuple(dict.fromkeys((*config.names.model_aliases, *preset)))
    return Names(models, config.names.voice_aliases, config.names.openai_names)
