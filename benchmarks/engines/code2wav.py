"""Measures the speed of the code2wav engine: `python -m benchmarks.engines.code2wav --help`.

The following alternatives are compared:

- this engine, with several chunk sizes and numbers of sessions
- windows, for which each chunk is decoded by Hugging Face's forward pass together with 25 previous
  frames, whose samples are discarded
- a single decode of all frames by Hugging Face, which is the baseline

The figures are CPU time of the thread per second of audio, because other processes may use the same
machine. The weights are random.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from antiphon.runtime.engine import Completed, Emitted, InputChunk, SegmentSettings
from antiphon.values.chunk import Tensor
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_omni.code2wav.load import EDGES
from antiphon_services.qwen3_omni.code2wav.vocoder import vocoder_of
from antiphon_services.vocoder.engine import VocoderEngine
from antiphon_services.vocoder.stream import StreamDecoder
from antiphon_testkit.qwen3_omni.tiny_shape import SMALL
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side

LEFT_CONTEXT = 25
FRAMES_PER_SECOND = 12.5
ONE_DECODE = "one decode"
WANTED = SegmentSettings("", Sampling(0.0, 0, 1.0, 1.0, 0, 1), frozenset({"audio"}))


def measure(run: Callable[[], object], frames: int) -> Figures:
    """Return the CPU time of this thread per second of audio that `run` generates."""
    started = time.thread_time()
    run()
    used_s = time.thread_time() - started
    return {"CPU, s per s of audio": used_s * FRAMES_PER_SECOND / frames}


class Engines:
    """The alternatives, which share a module and a decoder that uses its weights."""

    def __init__(self, config: Qwen3OmniMoeCode2WavConfig, frames: int) -> None:
        torch.manual_seed(0)
        self.module = Qwen3OmniMoeCode2Wav(config)
        self.module.train(False)
        self.decoder = StreamDecoder(vocoder_of(self.module))
        shape = (frames, config.num_quantizers)
        rng = np.random.default_rng(0)
        self.codes = rng.integers(0, config.codebook_size, shape).astype(np.uint16)

    @torch.inference_mode()
    def one_shot(self, codes: Tensor) -> torch.Tensor:
        """Decode frames with Hugging Face's module. Returns samples of shape [samples]."""
        samples: torch.Tensor = self.module(torch.from_numpy(codes.astype(np.int64)).T[None])
        return samples[0, 0]

    def windows(self, chunk: int) -> None:
        """Decode each chunk together with its left context, and discard the samples of the
        context.
        """
        for start in range(0, len(self.codes), chunk):
            context = min(start, LEFT_CONTEXT)
            samples = self.one_shot(self.codes[start - context : start + chunk])
            samples[context * self.decoder.samples_per_frame :].numpy()

    def stream(self, chunk: int, sessions: int, frames: int) -> list[Tensor]:
        """Decode several sessions. Each chunk is decoded for all sessions before the next one."""
        engine = VocoderEngine(self.decoder, EDGES, frames, sessions)
        keys = [SegmentKey(f"session-{each}", 0) for each in range(sessions)]
        parts: dict[SegmentKey, list[Tensor]] = {key: [] for key in keys}
        for key in keys:
            engine.admit(key, WANTED)
        for start in range(0, frames, chunk):
            codes = self.codes[start : min(start + chunk, frames)]
            last = start + chunk >= frames
            finish = FinishReason.STOP if last else None
            for key in keys:
                engine.accept(key, InputChunk("codes", start, {"codes": codes}, last, finish))
            _drain(engine, keys, parts)
        return [np.concatenate(part) for part in parts.values()]


def _drain(
    engine: VocoderEngine, keys: Sequence[SegmentKey], parts: dict[SegmentKey, list[Tensor]]
) -> None:
    """Run steps until there is nothing left to decode."""
    done: set[SegmentKey] = set()
    while any(engine.awaited_edge(key) is None for key in keys if key not in done):
        for event in engine.step():
            match event:
                case Emitted():
                    parts[event.key].append(event.tensors["samples"])
                case Completed():
                    done.add(event.key)
                    engine.release(event.key)
                case _:
                    raise event.error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the results."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    engines = Engines(decoder_config(options.shape), options.frames)
    with stated_machine():
        _print_facts(engines, options)
        comparison = Comparison(_sides(engines, options), f"{options.shape} code2wav")
        asyncio.run(comparison.run(options.rounds))
        comparison.report()
    return 0


def _sides(engines: Engines, options: argparse.Namespace) -> list[Side]:
    """Return the sides to compare."""
    frames = options.frames

    def side(name: str, made: int, run: Callable[[], object], *against: str) -> Side:
        return Side(name, partial(measure, run, made), against)

    sides = [side(ONE_DECODE, frames, partial(engines.one_shot, engines.codes))]
    for chunk in options.chunks:
        windows = f"windows {chunk}"
        sides.append(side(windows, frames, partial(engines.windows, chunk), ONE_DECODE))
        for sessions in options.sessions:
            # About as much audio in all for each number of sessions, whole chunks each.
            own = max(chunk, frames // sessions // chunk * chunk)
            if own * sessions > 2 * frames:
                continue
            run = partial(engines.stream, chunk, sessions, own)
            name = f"engine {chunk} x {sessions}"
            sides.append(side(name, own * sessions, run, windows, ONE_DECODE))
    return sides


def _print_facts(engines: Engines, options: argparse.Namespace) -> None:
    """Print the settings, and the difference of streamed audio from a single decode."""
    parameters = sum(each.numel() for each in engines.module.parameters())
    state = engines.decoder.state_bytes
    print(
        f"{options.shape}: {parameters / 1e6:.1f} M parameters, float32, {options.threads} thread, "
        f"{options.frames} frames, {options.rounds} rounds"
    )
    print(f"state of a session: {state} bytes; 16 slots: {16 * state / 1e6:.1f} MB")
    whole = engines.one_shot(engines.codes).numpy()
    (streamed,) = engines.stream(4, 1, options.frames)
    error, loudest = np.abs(streamed - whole).max(), np.abs(whole).max()
    print(f"largest difference from one decode: {error:.1e} (largest sample {loudest:.1e})\n")


def decoder_config(shape: str) -> Qwen3OmniMoeCode2WavConfig:
    """Return the configuration of the released model, or one about as small as the tiny
    checkpoint.
    """
    if shape == "released":
        return Qwen3OmniMoeCode2WavConfig()
    return Qwen3OmniMoeCode2WavConfig(
        codebook_size=SMALL.codebook_size,
        num_quantizers=SMALL.code_groups,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=48,
        num_hidden_layers=2,
        decoder_dim=32,
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.engines.code2wav", description=__doc__)
    parser.add_argument("--shape", choices=("released", "tiny"), default="released")
    parser.add_argument("--frames", type=int, default=50, help="frames of a session alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chunks", type=int, nargs="+", default=[25, 4], help="frames each")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 16])
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
