"""The recorded answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class FlashTruth:
    """Arrays and rows of cases by `preset/case`."""

    arrays: dict[str, npt.NDArray[Any]]
    rows: dict[str, dict[str, Any]]

    @classmethod
    def read(cls) -> FlashTruth:
        """Read the files of the recorder."""
        with np.load(HERE / "recorded.npz") as stored:
            arrays = {name: stored[name] for name in stored.files}
        rows = json.loads((HERE / "recorded.json").read_text())["cases"]
        return cls(arrays, {row["case"]: row for row in rows})
