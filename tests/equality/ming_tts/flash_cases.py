"""What the talker of Ming-flash-omni was asked, and antiphon is asked."""

from __future__ import annotations

from collections.abc import Iterator

from tests.equality.ming_tts.ming_cases import CLIP, DESCRIPTION, PLAIN, TEXTS, VOICE, Case

FIRST_NAME, SECOND_NAME = "DB30", "lingguang"
NAMES = (FIRST_NAME, SECOND_NAME)
"""Voices that the tiny checkpoint lists."""
MODES = (PLAIN, CLIP, VOICE, DESCRIPTION, *NAMES)
READ = ("english", "chinese", "emoji", "letter", "music", "spaces")
FEW_STEPS = 12


def flash_cases() -> Iterator[Case]:
    """Some texts in each mode, and some with a short limit or a warm flow."""
    for mode in MODES:
        for name in READ:
            yield Case(f"flash-{mode}-{name}", mode, TEXTS[name], most_steps=FEW_STEPS)
    yield Case("flash-cut-at-one", FIRST_NAME, TEXTS["english"], most_steps=1)
    # The longest duration of one letter ends it, not the limit.
    yield Case("flash-longest", PLAIN, TEXTS["letter"])
    yield Case("flash-warm", FIRST_NAME, TEXTS["chinese"], most_steps=FEW_STEPS, temperature=1.0)
