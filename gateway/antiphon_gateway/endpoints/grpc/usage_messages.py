"""Converts the usage of an answer to a message. This module performs no I/O."""

from __future__ import annotations

from antiphon.v1 import usage_pb2
from antiphon.values.answer import Usage


def write_usage(usage: Usage) -> usage_pb2.Usage:
    """Return the usage as a message."""
    return usage_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        prompt_audio_tokens=usage.prompt_audio_tokens,
        prompt_image_tokens=usage.prompt_image_tokens,
        prompt_cached_tokens=usage.prompt_cached_tokens,
        completion_tokens=usage.completion_tokens,
        completion_audio_frames=usage.completion_audio_frames,
        completion_image_tokens=usage.completion_image_tokens,
    )
