"""Answers by masked diffusion that are recorded from Dynin-Omni's code."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_testkit.tiny_llada import END_OF_AUDIO, TEXT_IDS

SEED = 5
TEXT, SPEECH, IMAGE = "text", "speech", "image"


@dataclass(frozen=True, slots=True)
class DiffusionCase:
    """An answer of `count` ids to `prompt` ids. `key` is the seed of its draws."""

    name: str
    kind: str
    count: int
    steps: int
    prompt: int = 9
    block: int = 16
    temperature: float = 1.0
    guidance: float = 0.0
    key: int = 1

    @property
    def prompt_ids(self) -> list[int]:
        """Ids of text below the special ones."""
        return [(11 + 7 * self.key + 13 * at * at) % 150 for at in range(self.prompt)]

    @property
    def unguided_ids(self) -> list[int]:
        """The prompt of an image without a request, as long as the other."""
        return [(17 + 5 * at) % 150 for at in range(self.prompt)]


CASES = (
    DiffusionCase("greedy", TEXT, 48, 48, temperature=0.0),
    DiffusionCase("greedy-two-a-step", TEXT, 32, 16, temperature=0.0, prompt=14),
    DiffusionCase("greedy-guided", TEXT, 32, 32, temperature=0.0, guidance=1.5),
    DiffusionCase("drawn", TEXT, 32, 32, temperature=0.8, key=2),
    DiffusionCase("drawn-guided", TEXT, 32, 32, temperature=1.3, guidance=0.7, key=3),
    DiffusionCase("one-id", TEXT, 1, 1, block=1, temperature=0.0),
    DiffusionCase("short-prompt", TEXT, 16, 16, temperature=0.0, prompt=1),
    DiffusionCase("units", SPEECH, 45, 45, guidance=2.5, key=4),
    DiffusionCase("units-unguided", SPEECH, 40, 40, key=5),
    DiffusionCase("units-cooler", SPEECH, 47, 30, guidance=2.5, temperature=0.6, key=6),
    DiffusionCase("units-few-steps", SPEECH, 33, 6, guidance=1.0, key=(1 << 127) + 7),
    DiffusionCase("units-more-steps-than-units", SPEECH, 20, 64, key=8),
    DiffusionCase("image", IMAGE, 64, 20, guidance=3.5, key=9),
    DiffusionCase("image-unguided", IMAGE, 36, 18, key=10),
    DiffusionCase("image-without-noise", IMAGE, 36, 12, temperature=0.0, key=11),
    DiffusionCase("image-one-step", IMAGE, 16, 1, guidance=2.0, key=12),
    DiffusionCase("image-more-steps-than-tokens", IMAGE, 6, 20, guidance=1.0, key=13),
)

COSINE_COUNTS = (1, 2, 16, 36, 256, 1000, 1024)
COSINE_STEPS = tuple(range(1, 33))
assert END_OF_AUDIO < TEXT_IDS
