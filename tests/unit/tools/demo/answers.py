"""Answers as a client measures them, made up."""

from __future__ import annotations

import numpy as np

import antiphon
from antiphon.client.events import StageReport
from antiphon_tools.demo.measure import MeasuredAnswer
from antiphon_tools.demo.script import ScriptTurn

RATE_HZ = 24_000


def pcm16(seconds: float, level: int) -> bytes:
    """A constant."""
    return np.full(round(seconds * RATE_HZ), level, "<i2").tobytes()


def turn(
    *, voice: str = "low", text: str = "Yes.", sound: bytes = b"", first_s: float = 0.25,
    last_s: float = 0.5,
) -> ScriptTurn:  # fmt: skip
    """A turn whose sound arrives in two pieces and whose stages overlap."""
    reports = {
        "thinker": StageReport(0, 0, 0.0, 0.05, 0.1, 0.1),
        "talker": StageReport(0, 0, 0.02, 0.06, 0.4, 0.3),
        "code2wav": StageReport(0, 0, 0.0, 0.0, 0.0, 0.0),
    }
    stop, usage = antiphon.FinishReason.STOP, antiphon.Usage()
    reply = antiphon.Reply(text, sound, RATE_HZ if sound else 0, stop, usage, reports)
    times = (first_s, last_s) if sound else ()
    return ScriptTurn("Well?", voice, MeasuredAnswer(reply, 0.05, times, last_s))
