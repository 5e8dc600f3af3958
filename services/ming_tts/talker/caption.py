"""How the vendor's models read a description of the voice: a caption in JSON."""

from __future__ import annotations

import json

STYLE = "风格"

_PARTS = ("序号", "说话人", "方言", STYLE, "语速", "基频", "音量", "情感", "BGM", "IP")
_MUSIC = ("Genre", "Mood", "Instrument", "Theme", "ENV", "SNR")


def caption_of(style: str) -> str:
    """The caption of one speaker whose style is described in words."""
    told: dict[str, object] = dict.fromkeys(_PARTS)
    told |= {
        "序号": 1,
        "说话人": "speaker_1",
        STYLE: style,
        "BGM": dict.fromkeys(_MUSIC),
    }
    return json.dumps({"audio_sequence": [told]}, ensure_ascii=False)
