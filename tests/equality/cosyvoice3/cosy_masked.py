"""What the vendor's code2wav was asked with the block mask: all recorded codes, and longer ones.

Random codes reach further than the texts' answers do: through many blocks, to their edges, and
with prompts that end anywhere in a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MEL_BINS, SPEAKER_WIDTH, SPEECH_IDS, FRAMES_PER_CODE = 80, 192, 6561, 2

MEL_STEP = 23
"""Of recorded mel frames every so many numbers are kept."""


@dataclass(frozen=True, slots=True)
class CodesCase:
    """So many random codes, said with a random voice of so many."""

    prompt: int
    codes: int

    @property
    def name(self) -> str:
        """Its name among what is recorded."""
        return f"codes-{self.prompt}-{self.codes}"

    @property
    def whole_name(self) -> str:
        """The name of its recording without the block mask."""
        return f"{self.name}/whole"


CODES_CASES = (
    CodesCase(0, 1),
    CodesCase(0, 130),
    CodesCase(5, 19),
    CodesCase(5, 23),
    CodesCase(24, 60),
    CodesCase(25, 25),
    CodesCase(25, 28),
    CodesCase(25, 53),
    CodesCase(37, 12),
    CodesCase(37, 160),
    CodesCase(60, 303),
)


def voice_and_codes(
    case: CodesCase,
) -> tuple[dict[str, npt.NDArray[np.generic]], npt.NDArray[np.uint16]]:
    """The tensors of the edge `speaker_prompt`, and codes uint16 [n]."""
    draw = np.random.default_rng([case.prompt, case.codes])
    voice = {
        "speaker": draw.standard_normal((1, SPEAKER_WIDTH), np.float32),
        "prompt_codes": draw.integers(SPEECH_IDS, size=case.prompt, dtype=np.int32),
        "prompt_mel": draw.standard_normal((FRAMES_PER_CODE * case.prompt, MEL_BINS), np.float32),
    }
    return voice, draw.integers(SPEECH_IDS, size=case.codes, dtype=np.uint16)


def long_mel() -> npt.NDArray[np.float32]:
    """Frames [1000, bins] of 20 s, which pieces of the vocoder are made of."""
    return np.random.default_rng(1).standard_normal((1000, MEL_BINS), np.float32)
