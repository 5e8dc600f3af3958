"""What the talker of Ming-flash-omni was asked, and antiphon is asked."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.equality.ming_tts.ming_cases import CLIP, DESCRIPTION, PLAIN, TEXTS, VOICE, Case

FIRST_NAME, SECOND_NAME = "DB30", "lingguang"
NAMES = (FIRST_NAME, SECOND_NAME)
"""Voices that the tiny checkpoint lists."""
MODES = (PLAIN, CLIP, VOICE, DESCRIPTION, *NAMES)
READ = ("english", "chinese", "emoji", "letter", "music", "spaces")
FEW_STEPS = 12
LIMITED = (1, 5, 6, 7, 8, 20, 47, 48, 49, 100, 120)
"""Numbers of characters whose longest duration is recorded."""
ALL_STEPS = 2000

LONG = {
    "english": (
        "The water of the day was with you for many hours, but no people came to see it. "
        "It costs 3.50 in the U.S.A. and nobody knows why! Is that so? Then we go on and look at "
        "the rest of the words, of which there are more than enough for one breath, and then for "
        "another."
    ),
    "chinese": (
        "你好。今天天气很好，我们去看水吧！水边有很多人，他们都在说话，也有人在唱歌。"  # noqa: RUF001
        "你想去吗？我们可以一起走，慢慢地走过去，一边走一边看，直到天黑为止。好不好？"  # noqa: RUF001
    ),
}
"""Texts of several utterances."""
LONG_MODES = (PLAIN, CLIP, FIRST_NAME)


def flash_cases() -> Iterator[Case]:
    """Some texts in each mode, and some with a short limit or a warm flow."""
    for mode in MODES:
        for name in READ:
            yield Case(f"flash-{mode}-{name}", mode, TEXTS[name], most_steps=FEW_STEPS)
    yield Case("flash-cut-at-one", FIRST_NAME, TEXTS["english"], most_steps=1)
    # The longest duration of one letter ends it, not the limit.
    yield Case("flash-longest", PLAIN, TEXTS["letter"])
    for mode in LONG_MODES:
        for name, text in LONG.items():
            yield Case(f"flash-{mode}-long-{name}", mode, text, most_steps=ALL_STEPS)
    yield Case("flash-long-warm", FIRST_NAME, LONG["chinese"], ALL_STEPS, temperature=1.0)
    yield Case("flash-warm", FIRST_NAME, TEXTS["chinese"], most_steps=FEW_STEPS, temperature=1.0)


ENGLISH = "The water of day U.S.A. 3.14 1,000 see it, “yes” 'no' … 2.5.7"
CHINESE = "你好 今天天气 很好 我们"


def made_texts() -> Iterator[str]:
    """Texts of words and marks by chance, in two languages, short and long; and some odd ones."""
    draw = random.Random(7)
    words = [*ENGLISH.split(), *CHINESE.split()]
    marks = [". ", "! ", "? ", ", ", "; ", ": ", "。", "，", "！", "？", "\n", "。，", *[" "] * 6]  # noqa: RUF001
    for count in (1, 5, 20, 40, 60, 80, 120, 200, *[150] * 20):
        yield "".join(draw.choice(words) + draw.choice(marks) for _ in range(count))
    yield from TEXTS.values()
    yield from LONG.values()
    yield from ("word " * 120, "水" * 120, "，" + "水" * 60, "... !", "a" * 300 + " b" * 60)  # noqa: RUF001
