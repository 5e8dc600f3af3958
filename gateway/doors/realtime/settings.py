"""What holds in a realtime session: settings that a client may change, told as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import UNSET

from antiphon.errors import InvalidArgument
from gateway.doors.http.voice import voice_name
from gateway.doors.realtime.client_events import (
    AudioSettings,
    ResponseSettings,
    SampleFormat,
    SessionSettings,
)
from gateway.outputs import AUDIO, TEXT

RATE_HZ = 24_000
"""The only rate of the API's `audio/pcm`."""

PCM = {"type": "audio/pcm", "rate": RATE_HZ}


@dataclass(frozen=True, slots=True)
class RealtimeSettings:
    """Settings of a session, or of one response. `max_output_tokens` None is no limit of theirs.

    An unknown voice is none that clients may stumble over: the default holds, and is told.
    """

    model: str
    voices: tuple[str, ...]
    spoken: bool = True
    voice: str = ""
    instructions: str = ""
    max_output_tokens: int | None = None

    @property
    def outputs(self) -> frozenset[str]:
        """The outputs to ask the stages for. What is spoken has its transcript."""
        return frozenset({TEXT, AUDIO}) if self.spoken else frozenset({TEXT})

    @property
    def modalities(self) -> list[str]:
        """`output_modalities`: exactly one."""
        return ["audio" if self.spoken else "text"]

    def updated(self, asked: SessionSettings) -> RealtimeSettings:
        """With what a client asks for. Raises `InvalidArgument` for what cannot be."""
        if asked.type != "realtime":
            raise InvalidArgument(
                f"session.type: {asked.type!r} is not served; there is 'realtime'",
                field="session.type",
            )
        changed = self._with(asked.output_modalities, asked.max_output_tokens, "session")
        if asked.audio is not None:
            changed = changed._with_audio(asked.audio, "session")
        if asked.instructions is not UNSET:
            changed = replace(changed, instructions=asked.instructions or "")
        return changed

    def for_response(self, asked: ResponseSettings) -> RealtimeSettings:
        """With what one response asks for. Raises `InvalidArgument` for what cannot be."""
        changed = self._with(asked.output_modalities, asked.max_output_tokens, "response")
        if asked.audio is not None:
            changed = changed._with_audio(asked.audio, "response")
        if asked.instructions is not None:
            changed = replace(changed, instructions=asked.instructions)
        return changed

    def session(self, session_id: str) -> dict[str, Any]:
        """The session as `session.created` and `session.updated` tell it."""
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": session_id,
            "model": self.model,
            "output_modalities": self.modalities,
            "instructions": self.instructions,
            "audio": {
                "input": {
                    "format": PCM,
                    "noise_reduction": None,
                    "transcription": None,
                    "turn_detection": None,
                },
                "output": {"format": PCM, "voice": self.voice, "speed": 1.0},
            },
            "tools": [],
            "tool_choice": "auto",
            "max_output_tokens": self.told_max_tokens,
            "tracing": None,
        }

    @property
    def told_max_tokens(self) -> int | str:
        """The limit as the API tells it."""
        return "inf" if self.max_output_tokens is None else self.max_output_tokens

    def _with(
        self, modalities: Sequence[str] | None, limit: int | str | None, where: str
    ) -> RealtimeSettings:
        changed = self
        if modalities is not None:
            field = f"{where}.output_modalities"
            if list(modalities) not in (["text"], ["audio"]):
                raise InvalidArgument(f"{field}: give ['text'] or ['audio']", field=field)
            changed = replace(changed, spoken=modalities[0] == "audio")
        if limit is not None:
            field = f"{where}.max_output_tokens"
            if limit == "inf":
                return replace(changed, max_output_tokens=None)
            if isinstance(limit, str) or limit < 1:
                raise InvalidArgument(f"{field}: give a number from 1, or 'inf'", field=field)
            changed = replace(changed, max_output_tokens=limit)
        return changed

    def _with_audio(self, asked: AudioSettings, where: str) -> RealtimeSettings:
        ways: Mapping[str, SampleFormat | None] = {
            "input": asked.input.format if asked.input else None,
            "output": asked.output.format if asked.output else None,
        }
        for way, given in ways.items():
            field = f"{where}.audio.{way}.format"
            if given is not None and (given.type, given.rate or RATE_HZ) != ("audio/pcm", RATE_HZ):
                raise InvalidArgument(
                    f"{field}: {given.type} is not served; give audio/pcm of {RATE_HZ} Hz",
                    field=field,
                )
        if asked.output is None or asked.output.voice is None:
            return self
        voice = voice_name(asked.output.voice).lower()
        return replace(self, voice=voice) if voice in self.voices else self
