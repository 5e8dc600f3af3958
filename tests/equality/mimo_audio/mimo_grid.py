"""How far streamed audio of MiMo-Audio is from whole audio, by context: a table.

`python -m tests.equality.mimo_audio.mimo_grid` prints it, in hundredths of the audio's root mean
square: the difference's, and the largest. Weights are random, so it shows the structure, and not
the size that trained weights give. Attention of random weights picks single rows, however far they
are; the second table is of weights whose queries and keys are `SOFT` times as large, so that it
mixes many.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.mimo_audio import BLOCK_FRAMES
from antiphon_services.mimo_audio.code2wav.decoder import FrameCodecDecoder
from antiphon_services.mimo_audio.code2wav.load import load_decoder
from antiphon_services.mimo_audio.code2wav.windows import DecodeWindow, WindowPlan
from antiphon_testkit.mimo_audio.tiny_checkpoint import AUDIO_TOKENIZER, PRESETS, build_tiny_mimo
from tests.equality.mimo_audio.mimo_cases import SEED, codes_of

Float32 = npt.NDArray[np.float32]
SOFT = 0.1
LEFT, RIGHT = (40, 100, 250, 1000), (0, 10, 40)


def windows(plan: WindowPlan, count: int) -> Iterator[DecodeWindow]:
    """All windows of so many frames."""
    sent = 0
    while (window := plan.following(sent, count, finished=True)) is not None:
        yield window
        sent = window.stop


def decoded(decoder: FrameCodecDecoder, codes: npt.NDArray[np.uint16], plan: WindowPlan) -> Float32:
    """Samples of all frames, window by window."""
    parts = [
        decoder.window_samples(codes[each.left : each.right], each)
        for each in windows(plan, len(codes))
    ]
    return np.concatenate(parts)


def difference(one: Float32, other: Float32) -> tuple[float, float]:
    """Root mean square and largest of the difference, of the other's root mean square."""
    loud = float(np.sqrt(np.square(other).mean()))
    apart = np.abs(one - other)
    return float(np.sqrt(np.square(apart).mean())) / loud, float(apart.max()) / loud


def print_table(name: str, decoder: FrameCodecDecoder, codes: npt.NDArray[np.uint16]) -> None:
    """Print one table, a row for each context before."""
    whole = decoded(decoder, codes, WindowPlan(None))
    print(f"{name}: {len(codes)} frames; right {RIGHT}")
    for left in LEFT:
        cells = []
        for right in RIGHT:
            streamed = decoded(decoder, codes, WindowPlan(BLOCK_FRAMES, left, right))
            rms, most = difference(streamed, whole)
            cells.append(f"{100 * rms:8.2f} {100 * most:8.1f}")
        print(f"left {left:5}  " + "  |  ".join(cells), flush=True)


def main() -> None:
    """Print the tables of each checkpoint."""
    torch.set_num_threads(1)
    codes = codes_of("long")
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name, shape in PRESETS.items():
            build_tiny_mimo(Path(folder) / name, shape, SEED)
            decoder = load_decoder(Path(folder) / name / AUDIO_TOKENIZER, StageConfig())
            print_table(name, decoder, codes)
            for key, weight in decoder.module.named_parameters():
                if key.endswith(("q_proj.weight", "k_proj.weight")):
                    weight *= SOFT
            print_table(f"{name}, soft", decoder, codes)


if __name__ == "__main__":
    main()
