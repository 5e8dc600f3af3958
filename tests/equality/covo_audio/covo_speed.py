"""Times the vendor's code and antiphon's engines in alternation, on one thread.

Runs in the recorder's environment with antiphon's packages: see the README in this folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.covo_audio.code2wav.load import load as load_code2wav
from antiphon_services.covo_audio.thinker.load import load as load_thinker
from antiphon_services.vocoder.stage import NO_SAMPLING
from antiphon_testkit.covo_audio.tiny_checkpoint import VOICE_FOLDER, build_tiny_covo
from antiphon_testkit.covo_audio.tiny_shape import RELEASED
from antiphon_testkit.drive_engine import run_segments
from tests.equality.covo_audio.covo_asking import asked
from tests.equality.covo_audio.covo_cases import CASES, RATE_HZ, SEED
from tests.equality.covo_audio.covo_record import (
    Margins,
    answer,
    import_vendor,
    load_model,
    load_token2wav,
)

SHAPE = dataclasses.replace(
    RELEASED,
    hidden=256,
    intermediate=512,
    layers=4,
    heads=8,
    kv_heads=2,
    flow_hidden=128,
    flow_inner=512,
    flow_layers=4,
    vocoder_hidden=128,
    prompt_codes=60,
)
CODES = 50
"""2 s of speech."""
ROUNDS = 3
KEY = SegmentKey("timed", 0)


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of wall clock and of CPU of a run."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def report(name: str, runs: dict[str, Callable[[], object]]) -> None:
    """Run each in alternation and print medians."""
    taken: dict[str, list[tuple[float, float]]] = {each: [] for each in runs}
    for each in runs.values():
        each()
    for _ in range(ROUNDS):
        for each, run in runs.items():
            taken[each].append(timed(run))
    for each, times in taken.items():
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name}: {each}: {wall:.2f} s, CPU {cpu:.2f} s", flush=True)


def main() -> None:
    """Print the times of code2wav and of the thinker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path, help="a checkout of the vendor's repository")
    given = parser.parse_args()
    vendor = import_vendor(given.vendor)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name) / "model"
        build_tiny_covo(folder, SHAPE, SEED)
        decoder = load_token2wav(folder, SHAPE)
        voice = folder / VOICE_FOLDER
        codes = np.random.default_rng(1).integers(16_384, size=(CODES, 1)).astype(np.uint16)
        feature = {
            "prompt_token": torch.LongTensor(np.load(voice / "prompt_token.npy")),
            "prompt_latent": torch.FloatTensor(np.load(voice / "prompt_latent.npy")),
            "spkr_embed": torch.FloatTensor(np.load(voice / "speaker_embed.npy")),
            "sample_rate": RATE_HZ,
            "target_token": torch.from_numpy(codes[:, 0].astype(np.int64))[None],
        }
        engine = load_code2wav(folder, StageConfig(slots=1)).engine
        settings = SegmentSettings("", NO_SAMPLING, frozenset({"audio"}))
        chunk = InputChunk("codes", 0, {"codes": codes}, True, FinishReason.STOP)
        report(
            f"code2wav, {CODES} codes",
            {
                "vendor": lambda: decoder.inference(feature, s_steps=10, cfg_alpha=1.0),
                "antiphon": lambda: run_segments(engine, {KEY: (settings, [chunk])}),
            },
        )
        model, tokenizer = load_model(vendor, folder)
        thinker = load_thinker(folder, StageConfig(slots=1, context_limit=1200)).engine
        case = next(each for each in CASES if each.name == "odd")
        report(
            f"thinker, up to {case.most} ids",
            {
                "vendor": lambda: answer(model, vendor, tokenizer, case, Margins()),
                "antiphon": lambda: run_segments(thinker, {KEY: asked(case)}),
            },
        )


if __name__ == "__main__":
    main()
