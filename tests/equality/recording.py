"""What recorders of vendors' answers share. They run without the rest of the tests' packages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SEED = 0
RATE_HZ = 24_000


def reference_voice(samples: int) -> npt.NDArray[np.int16]:
    """Something like a voice at 24 kHz, the same everywhere."""
    time = np.arange(samples) / RATE_HZ
    noise = np.random.default_rng(SEED).standard_normal(samples)
    pitch = 2 * np.pi * (140 * time + 30 * np.sin(3 * time))
    wave = sum(np.sin(each * pitch) / each for each in range(1, 12))
    loud = 0.5 + 0.5 * np.sin(2 * np.pi * 4 * time)
    mixed = loud * (0.25 * wave + 0.05 * noise)
    return (np.clip(mixed, -1, 1) * 32767).astype(np.int16)


def write_recorded(
    folder: Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    cases: Sequence[Mapping[str, Any]],
    package: Mapping[str, str],
) -> None:
    """Write `recorded.npz` and `recorded.json`: a line for each case, and the versions of the
    vendor's `package`, transformers and torch."""
    import torch
    import transformers

    np.savez_compressed(folder / "recorded.npz", **dict(arrays))
    made_with = {
        **package,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    rows = ",\n".join("  " + json.dumps(row) for row in cases)
    text = f'{{"made_with": {json.dumps(made_with)},\n "cases": [\n{rows}\n]}}\n'
    (folder / "recorded.json").write_text(text)
