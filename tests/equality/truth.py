"""What the reference says of each case, and which cases prove something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen3_omni.reference import Case, Reference, ReferenceOutput


@dataclass(slots=True)
class Truth:
    """The reference of one checkpoint; every case is run once."""

    reference: Reference
    outputs: dict[int, ReferenceOutput] = field(default_factory=dict)
    kept: list[Case] = field(default_factory=list)

    def of(self, case: Case) -> ReferenceOutput:
        """What Hugging Face answers."""
        if id(case) not in self.outputs:
            self.outputs[id(case)] = self.reference.run(case)
            self.kept.append(case)
        return self.outputs[id(case)]

    def safe(self, candidates: Sequence[Case], wanted: int) -> list[Case]:
        """The first `wanted` candidates in which no greedy choice was close.

        The choice looks at the reference alone, before anything is compared.
        """
        found: list[Case] = []
        for case in candidates:
            if self.of(case).min_margin >= MIN_MARGIN:
                found.append(case)
            if len(found) == wanted:
                return found
        raise AssertionError(f"only {len(found)} of {len(candidates)} cases have a safe margin")
