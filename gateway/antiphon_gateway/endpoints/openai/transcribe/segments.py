"""Transcripts with timestamps, as JSON or as subtitles. They consist of a single segment for the
whole recording.

There are no shorter segments, because the model doesn't report timestamps. Only the length of the
recording is known.
"""

from __future__ import annotations

import html
import math
import zlib
from collections.abc import Sequence

from antiphon_gateway.endpoints.openai.transcribe.schema import TranscriptionSegment


def whole_segment(
    text: str,
    seconds: float,
    tokens: Sequence[int],
    logprobs: Sequence[float],
    temperature: float | None,
) -> tuple[TranscriptionSegment, ...]:
    """Return the segment for a recording of `seconds` seconds. If the transcript is empty, so is
    the result.

    `logprobs` contains the log probabilities of its tokens. If `temperature` is None, 0 is
    reported.
    """
    if not text.strip():
        return ()
    utf8 = text.encode(errors="replace")
    return (
        TranscriptionSegment(
            id=0,
            seek=0,
            start=0.0,
            end=seconds,
            text=text,
            tokens=tuple(tokens),
            temperature=temperature or 0.0,
            avg_logprob=sum(logprobs) / len(logprobs) if logprobs else 0.0,
            # This is what Whisper uses to detect a transcript with repetitions.
            compression_ratio=len(utf8) / len(zlib.compress(utf8)),
            no_speech_prob=0.0,
        ),
    )


def srt(text: str, seconds: float) -> str:
    """Return the transcript in SubRip format, which consists of a number, the times and the
    text.
    """
    if not (cue := _cue(text)):
        return ""
    # SubRip has no way to escape its arrow.
    cue = cue.replace("-->", "->")
    return f"1\n{_time(0, ',')} --> {_time(_end_ms(seconds), ',')}\n{cue}\n\n"


def vtt(text: str, seconds: float) -> str:
    """Return the transcript in WebVTT format, in which `&`, `<` and `>` are escaped."""
    cue = html.escape(_cue(text), quote=False)
    times = f"{_time(0, '.')} --> {_time(_end_ms(seconds), '.')}\n{cue}\n\n"
    return "WEBVTT\n\n" + (times if cue else "")


def _cue(text: str) -> str:
    """Return the text without empty lines, because a cue ends at an empty line."""
    return "\n".join(line for each in text.splitlines() if (line := each.strip()))


def _end_ms(seconds: float) -> int:
    """Return the end of the cue in milliseconds, rounded up to at least 1."""
    return max(1, math.ceil(seconds * 1000))


def _time(milliseconds: int, point: str) -> str:
    seconds, ms = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{ms:03}"
