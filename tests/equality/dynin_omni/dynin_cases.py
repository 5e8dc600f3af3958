"""What the vendor's code was asked, and antiphon is asked."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image

from antiphon.pipelines.dynin_omni import BLOCK, GUIDANCE, STEPS, THINKER
from antiphon.values.options import IMAGE, SPEECH, TASK, TRANSCRIPTION, OptionValue
from antiphon.values.sampling import SamplingRequest, stream_key

SEED = 7
RATE_HZ = 16_000
CHAT, SHOWN, HEARD, TRANSCRIBED = "chat", "shown", "heard", "transcribed"
READ, SPOKEN, DRAWN, CHANGED = "read", "spoken", "drawn", "changed"
TEXT_TASKS, SPEECH_TASKS, IMAGE_TASKS = (
    (CHAT, SHOWN, HEARD, TRANSCRIBED),
    (READ, SPOKEN),
    (DRAWN, CHANGED),
)
TASKS = {READ: SPEECH, TRANSCRIBED: TRANSCRIPTION, DRAWN: IMAGE, CHANGED: IMAGE}
"""The option `task` of a case; the others have none."""

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DyninCase:
    """An answer of `count` positions in blocks, all given to both.

    `turns` are a system message, if any, and then messages of user and assistant in turn; the last
    is `text`. An image has the checkpoint's size.
    """

    name: str
    kind: str
    text: str = ""
    count: int = 36
    block: int = 16
    steps: int = 16
    temperature: float = 1.0
    guidance: float = 0.0
    seed: int = 1
    turns: tuple[tuple[str, str], ...] = field(default=())

    @property
    def key(self) -> int:
        """That of the thinker's draws."""
        return stream_key(self.seed, THINKER)

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """Roles and texts."""
        return (*self.turns, ("user", self.text))

    @property
    def options(self) -> dict[str, OptionValue]:
        """Those of the request."""
        options: dict[str, OptionValue] = {STEPS: self.steps, GUIDANCE: self.guidance}
        if self.kind not in IMAGE_TASKS:
            options[BLOCK] = self.block
        if self.kind in TASKS:
            options[TASK] = TASKS[self.kind]
        return options

    @property
    def sampling(self) -> SamplingRequest:
        """That of the request."""
        most = None if self.kind in IMAGE_TASKS else self.count
        return SamplingRequest(temperature=self.temperature, max_tokens=most, seed=self.seed)


CASES = (
    DyninCase("greedy", CHAT, "Hello, how are you?", 64, 16, 32, 0.0),
    DyninCase("drawn", CHAT, "What is the weather?", 64, 32, 16, seed=2),
    DyninCase(
        "turns",
        CHAT,
        "  and now? ",
        48,
        16,
        24,
        0.8,
        seed=3,
        turns=(("system", "Say little."), ("user", "hear me"), ("assistant", "yes")),
    ),
    DyninCase("guided", CHAT, "water", 32, 16, 32, 0.9, 1.5, seed=4),
    DyninCase("ends", CHAT, "oil", 64, 16, 64, 1.2, seed=5),
    DyninCase("one", CHAT, "day", 1, 1, 1, 0.0),
    DyninCase("shown", SHOWN, "what is that?", 32, 32, 16, 0.0),
    DyninCase("shown-drawn", SHOWN, "say more", 32, 16, 16, seed=6),
    DyninCase("heard", HEARD, "what did he say?", 24, 2, 24, 0.0),
    DyninCase("transcribed", TRANSCRIBED, "", 24, 2, 24, 0.0),
    DyninCase("read", READ, "What is the weather?", 45, 16, 45, 1.0, 2.5, seed=7),
    DyninCase("read-cooler", READ, "how many people?", 40, 16, 12, 0.6, 1.0, seed=8),
    DyninCase("read-unguided", READ, "no", 47, 47, 24, seed=9),
    DyninCase("spoken", SPOKEN, "", 40, 16, 40, 1.0, 2.5, seed=10),
    DyninCase("drawn-image", DRAWN, "A water clock", steps=20, guidance=3.5, seed=11),
    DyninCase("drawn-unguided", DRAWN, "a day", steps=8, temperature=2.0, seed=12),
    DyninCase("changed", CHANGED, "more water", steps=12, guidance=3.5, seed=13),
)


def recording() -> Float32:
    """Mono samples at `RATE_HZ`: a second of rising tones."""
    time = np.arange(RATE_HZ) / RATE_HZ
    noise = 0.05 * np.random.default_rng(3).standard_normal(len(time))
    return (0.4 * np.sin(2 * np.pi * (200 + 300 * time) * time) + noise).astype(np.float32)


def picture() -> bytes:
    """A PNG file of coloured waves, wider than high."""
    rows, columns = np.mgrid[:90, :131]
    waves = [np.sin(rows / 7 + columns / (5 + each) + each) for each in range(3)]
    file = io.BytesIO()
    Image.fromarray(((np.stack(waves, 2) + 1) * 127.5).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()
