"""A transcript with times: one segment over the whole recording, as JSON or as subtitles.

The model reports no times, so the only ones that are known are those of the recording.
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
    """The segment over a recording of so many seconds; none of an empty transcript.

    `logprobs` are those of its tokens. `temperature` is 0 in the segment if none was given.
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
            # Whisper's measure of a transcript that repeats itself.
            compression_ratio=len(utf8) / len(zlib.compress(utf8)),
            no_speech_prob=0.0,
        ),
    )


def srt(text: str, seconds: float) -> str:
    """SubRip: a number, the times, the text."""
    if not (cue := _cue(text)):
        return ""
    # SubRip has no escape for its arrow.
    cue = cue.replace("-->", "->")
    return f"1\n{_time(0, ',')} --> {_time(_end_ms(seconds), ',')}\n{cue}\n\n"


def vtt(text: str, seconds: float) -> str:
    """WebVTT, whose texts escape `&`, `<` and `>`."""
    cue = html.escape(_cue(text), quote=False)
    times = f"{_time(0, '.')} --> {_time(_end_ms(seconds), '.')}\n{cue}\n\n"
    return "WEBVTT\n\n" + (times if cue else "")


def _cue(text: str) -> str:
    """The text without empty lines, which end a cue."""
    return "\n".join(line for each in text.splitlines() if (line := each.strip()))


def _end_ms(seconds: float) -> int:
    """Not before the end; a cue lasts for at least a millisecond."""
    return max(1, math.ceil(seconds * 1000))


def _time(milliseconds: int, point: str) -> str:
    seconds, ms = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{point}{ms:03}"
