"""Converts the `turn_detection` field to and from the realtime API's format."""

from __future__ import annotations

from typing import Any

from antiphon.errors import InvalidArgument
from antiphon.values.live_conversation import VoiceTurns
from antiphon_gateway.conversations.settings import EAGER_SILENCE_S, Eagerness, SemanticTurns
from antiphon_gateway.endpoints.realtime.client_events import TurnSettings

FIELD = "session.audio.input.turn_detection"
MOST_PADDING_MS = 10_000.0
LEAST_SILENCE_MS, MOST_SILENCE_MS = 32.0, 60_000.0
LEAST_IDLE_MS, MOST_IDLE_MS = 100.0, 120_000.0


def read_turns(asked: TurnSettings | None) -> VoiceTurns | None:
    """Return the settings to apply. Raises `InvalidArgument` with the invalid field."""
    if asked is None:
        return None
    creates = asked.create_response is not False
    interrupts = asked.interrupt_response is not False
    if asked.type == "semantic_vad":
        eagerness = _eagerness(asked.eagerness)
        silence_s = EAGER_SILENCE_S[eagerness]
        return SemanticTurns(
            silence_s=silence_s,
            creates_response=creates,
            interrupts_response=interrupts,
            eagerness=eagerness,
        )
    if asked.type != "server_vad":
        raise InvalidArgument(
            f"{FIELD}.type: unknown type {asked.type!r}; use 'server_vad' or 'semantic_vad', or "
            "set turn_detection to null if the client ends the turns",
            field=f"{FIELD}.type",
        )
    idle_ms = _within(asked.idle_timeout_ms, 0.0, LEAST_IDLE_MS, MOST_IDLE_MS, "idle_timeout_ms")
    return VoiceTurns(
        threshold=_within(asked.threshold, 0.5, 0.0, 1.0, "threshold"),
        prefix_padding_s=_within(
            asked.prefix_padding_ms, 300.0, 0.0, MOST_PADDING_MS, "prefix_padding_ms"
        )
        / 1000,
        silence_s=_within(
            asked.silence_duration_ms,
            500.0,
            LEAST_SILENCE_MS,
            MOST_SILENCE_MS,
            "silence_duration_ms",
        )
        / 1000,
        creates_response=creates,
        interrupts_response=interrupts,
        idle_timeout_s=idle_ms / 1000 if idle_ms else None,
    )


def turns_json(holds: VoiceTurns | None) -> dict[str, Any] | None:
    """Return the current settings. For `semantic_vad`, this includes how long the silence must
    last.
    """
    if holds is None:
        return None
    told: dict[str, Any] = {
        "silence_duration_ms": round(holds.silence_s * 1000),
        "create_response": holds.creates_response,
        "interrupt_response": holds.interrupts_response,
    }
    if isinstance(holds, SemanticTurns):
        return {"type": "semantic_vad", "eagerness": holds.eagerness.value, **told}
    idle_s = holds.idle_timeout_s
    return {
        "type": "server_vad",
        "threshold": holds.threshold,
        "prefix_padding_ms": round(holds.prefix_padding_s * 1000),
        "idle_timeout_ms": None if idle_s is None else round(idle_s * 1000),
        **told,
    }


def _eagerness(name: str | None) -> Eagerness:
    try:
        return Eagerness(name or Eagerness.AUTO.value)
    except ValueError:
        raise InvalidArgument(
            f"{FIELD}.eagerness: unknown value {name!r}; use one of: "
            f"{', '.join(each.value for each in Eagerness)}",
            field=f"{FIELD}.eagerness",
        ) from None


def _within(given: float | None, default: float, least: float, most: float, name: str) -> float:
    if given is None:
        return default
    if not least <= given <= most:
        raise InvalidArgument(
            f"{FIELD}.{name}: {given:g} is out of range; set it to a value from {least:g} to "
            f"{most:g}",
            field=f"{FIELD}.{name}",
        )
    return given
