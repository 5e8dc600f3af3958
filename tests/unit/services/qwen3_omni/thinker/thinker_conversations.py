"""Conversations, settings and chunks for the thinker's tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    Role,
    TextPart,
    to_tensors,
)
from antiphon.values.segment import FinishReason
from antiphon_services.qwen3_omni.thinker.load import DEFAULT_SAMPLING

SPEECH = frozenset({"text", "prompt", "tokens"})


def recording(seconds: float, seed: int = 0) -> npt.NDArray[np.float32]:
    """Noise over a tone, float32 mono at 16 kHz."""
    count = round(seconds * 16000)
    noise = np.random.default_rng(seed).standard_normal(count) * 0.05
    tone = np.sin(np.arange(count) * (0.03 + 0.01 * seed)) * 0.3
    return (noise + tone).astype(np.float32)


def say(*parts: str | float, role: Role = "user") -> tuple[Role, tuple[str | float, ...]]:
    """A message; a number is a recording of so many seconds."""
    return role, parts


def conversation(*messages: tuple[Role, tuple[str | float, ...]]) -> Conversation:
    """Messages with their recordings in order."""
    recordings: list[npt.NDArray[np.float32]] = []
    made = []
    for role, parts in messages:
        converted: list[TextPart | AudioPart] = []
        for part in parts:
            if isinstance(part, str):
                converted.append(TextPart(part))
            else:
                converted.append(AudioPart(len(recordings)))
                recordings.append(recording(part, seed=len(recordings)))
        made.append(ConversationMessage(role, tuple(converted)))
    return Conversation(tuple(made), tuple(recordings))


def ask(text: str) -> Conversation:
    """One user message of words."""
    return conversation(say(text))


def segment(
    spoken_to: Conversation, *, outputs: frozenset[str] = SPEECH, **sampling: Any
) -> tuple[SegmentSettings, list[InputChunk]]:
    """Settings (greedy, 48 ids unless told otherwise) and the one input chunk."""
    settings = replace(DEFAULT_SAMPLING, **{"max_tokens": 48, **sampling})
    return SegmentSettings("", settings, outputs), [input_chunk(spoken_to)]


def input_chunk(spoken_to: Conversation) -> InputChunk:
    """The whole conversation as one chunk that finishes the input."""
    return InputChunk(
        "input",
        0,
        to_tensors(spoken_to),
        segment_finished=True,
        finish_reason=FinishReason.STOP,
    )


TEXT = [
    ask("Hello"),
    ask("How are you?"),
    ask("Say water"),
    ask("你好。é 😀 \n\n  the weather"),
    conversation(say("\nThe water.", role="system"), say("No", " one", "two")),
]
TURNS = [
    conversation(
        say("You are the voice.", role="system"),
        say("How many people?"),
        say("Two people", role="assistant"),
        say("What is the time"),
    )
]
AUDIO = [
    conversation(say(1.0)),
    conversation(say(2.345), say("word", role="assistant"), say(0.31)),
    conversation(say("What is that: ", 0.5, " and ", 1.2301, "?")),
    conversation(
        say("Hear", role="system"),
        say(0.7, "sound"),
        say("is", role="assistant"),
        say("and now"),
    ),
]
EVERYTHING = [*TEXT, *TURNS, *AUDIO]
