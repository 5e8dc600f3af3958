"""The names of the voices that Ming-omni-tts was trained on.

The list is taken from the vendor's `cookbooks/instructions.md`, because checkpoints do not contain
it. The caption of a request selects a voice by name (`IP`). Voices of film and cartoon characters,
and names with an emotion (`..._高兴`), are not included.
"""

from __future__ import annotations

VOICES = (
    "灵小安", "灵语汐", "灵小萌", "灵小柔", "灵小雅", "花小呗", "灵韵", "妩媚妲己", "灵婉",
    "灵小月", "灵朵儿", "灵岩", "灵小锋", "灵小川", "灵小甄", "灵小知", "灵小惠", "灵小晴",
    "灵小琪", "灵梦", "灵恬", "灵小汐", "灵小棠", "灵小梨", "灵舒", "灵娇", "灵小芸",
    "灵锐", "灵空", "灵宇", "灵朗", "灵楷", "灵旭", "灵骁", "灵江", "悲伤女声", "说唱小哥",
)  # fmt: skip
