"""The recorded answers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class DyninTruth:
    """Arrays `prompt` and `ids`, and the words of text, by `preset/case`."""

    arrays: Mapping[str, npt.NDArray[Any]]
    words: Mapping[str, str]

    @classmethod
    def read(cls) -> DyninTruth:
        """Read the files of the recorder."""
        with np.load(HERE / "recorded.npz") as stored:
            arrays = {name: stored[name] for name in stored.files}
        return cls(arrays, json.loads((HERE / "recorded.json").read_text()))

    def prompt(self, stem: str) -> list[int]:
        """Ids before the answer."""
        return list(self.arrays[f"{stem}/prompt"].tolist())

    def ids(self, stem: str, ends: Collection[int] = ()) -> list[int]:
        """Ids of the answer up to the first of `ends`, and that one."""
        ids = list(self.arrays[f"{stem}/ids"].tolist())
        stop = next((at + 1 for at, each in enumerate(ids) if each in ends), len(ids))
        return ids[:stop]
