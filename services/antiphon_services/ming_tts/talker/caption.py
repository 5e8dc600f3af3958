"""Formats the description of a voice as the JSON caption that the vendor's models expect.

This module mirrors `create_instruction` in the vendor's example.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

DIALECT, STYLE, PACE, PITCH, VOLUME, EMOTION = "方言", "风格", "语速", "基频", "音量", "情感"
VOICE = "IP"

_PARTS = ("序号", "说话人", DIALECT, STYLE, PACE, PITCH, VOLUME, EMOTION, "BGM", VOICE)
_MUSIC = ("Genre", "Mood", "Instrument", "Theme", "ENV", "SNR")


def caption_of(told: Mapping[str, str]) -> str:
    """Create the caption of a single speaker from its parts."""
    parts: dict[str, object] = dict.fromkeys(_PARTS)
    parts |= {"序号": 1, "说话人": "speaker_1", "BGM": dict.fromkeys(_MUSIC)} | dict(told)
    return json.dumps({"audio_sequence": [parts]}, ensure_ascii=False)
