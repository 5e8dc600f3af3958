"""Aliases for the served model and its voices. They are either OpenAI's names or configured by the
deployment.

OpenAI's names, such as `whisper-1` or `alloy`, are built into many programs.
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
    # The default chat models of Pipecat, LiveKit and openai-agents.
    "gpt-4.1",
    "gpt-4.1-mini",
    "gpt-4o",
    "gpt-4o-mini",
)
"""OpenAI's models for speech and images and the default chat models of voice frameworks.

A name that ends in a date, such as `gpt-4o-mini-tts-2025-12-15`, refers to a snapshot. Snapshots
are accepted, but they aren't listed.
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
"""OpenAI's voices, in the order in which they are assigned to the checkpoint's voices. New names
must be appended at the end. Otherwise, existing assignments would change.
"""


@dataclass(frozen=True, slots=True)
class Names:
    """Aliases for the served model and its voices. `models` contains additional names for the
    model, and `voices` maps additional names to voices. If `openai_voices` is true, OpenAI's voice
    names are aliases, too.
    """

    models: tuple[str, ...] = ()
    voices: Mapping[str, str] = field(default_factory=dict)
    openai_voices: bool = False

    def has_model(self, name: str) -> bool:
        """Return whether the name is an alias of the model, or OpenAI's name for a snapshot of such
        an alias.
        """
        if name in self.models:
            return True
        name = _SNAPSHOT.sub("", name)
        return name in OPENAI_MODELS and name in self.models

    def voice_aliases(self, voices: Sequence[str]) -> dict[str, str]:
        """Return a mapping from aliases, in lower case, to the checkpoint's voices.

        If an alias has the same name as one of the checkpoint's voices, the alias is ignored. If
        the checkpoint has no voices, OpenAI's names map to an empty string.
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
    """Return the aliases that are configured in a deployment."""
    preset = OPENAI_MODELS if config.names.openai_names else ()
    models = tuple(dict.fromkeys((*config.names.model_aliases, *preset)))
    return Names(models, config.names.voice_aliases, config.names.openai_names)
