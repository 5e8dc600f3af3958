"""Measures streaming token2wav: `python -m benchmarks.engines.token2wav --help`.

For each number of held-back blocks, the benchmark measures the maximum difference of a sample from
the result of decoding all codes at once, the number of codes that the first audio requires, and the
CPU time of a thread for the first audio and for the complete speech. Codes arrive one block at a
time. The baseline is Hugging Face's decoder. Decoding all codes at once with our decoder is another
side. The weights are random and the widths are small. The number of layers and their attention
pattern can be the same as in the released model.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniToken2WavConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from antiphon_services.qwen2_5_omni.token2wav.decoder import Token2Wav
from antiphon_services.qwen2_5_omni.token2wav.voices import VoiceTensors
from antiphon_testkit.qwen2_5_omni.noise import KeyedNoise
from antiphon_testkit.qwen2_5_omni.tiny_weights import MEL_LEVEL, RULES
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side

CODES_PER_SECOND = 50.0
VOICE, SEED = "voice", 7
TINY = {"num_hidden_layers": 3, "look_ahead_layers": [1], "look_backward_layers": [0, 2]}
RELEASED: dict[str, Any] = {}
DEPTHS = {"3": TINY, "22": RELEASED}


@dataclass(frozen=True, slots=True)
class Decoded:
    """The samples, the CPU time until the first sample and until all samples, and the number of
    codes that the first sample required.
    """

    samples: torch.Tensor
    first_s: float
    all_s: float
    needed: int


@dataclass(slots=True)
class DecoderSide:
    """A way to decode. `last` contains the result of its last round."""

    decode: Callable[[], Decoded]
    audio_s: float
    last: list[Decoded] = field(default_factory=list)

    def measure(self) -> Figures:
        """Decode all codes once."""
        made = self.decode()
        self.last = [made]
        return {
            "CPU, s per s of audio": made.all_s / self.audio_s,
            "CPU to the first audio, s": made.first_s,
        }


class Decoders:
    """Hugging Face's module with random weights, and our decoder with the same weights."""

    def __init__(self, depth: str, width: int, codes: int) -> None:
        flow = DEPTHS[depth] | {
            "hidden_size": width,
            "num_attention_heads": width // 32,
            "head_dim": 32,
            "emb_dim": width // 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        }
        config: Any = Qwen2_5OmniToken2WavConfig(
            dit_config=flow, bigvgan_config={"upsample_initial_channel": 64}
        )
        model_class: Any = Qwen2_5OmniToken2WavModel
        self.module: Any = model_class(config).eval().requires_grad_(False)
        RULES.fill(self.module, 0)
        self.module.code2wav_dit_model.proj_out.bias += MEL_LEVEL
        draw = torch.Generator().manual_seed(0)
        mel = 1.5 * torch.randn(1, 100, 80, generator=draw) + MEL_LEVEL
        self.voice = VoiceTensors(torch.randn(1, 192, generator=draw), mel)
        self.codes = torch.randint(0, 8194, (codes,), generator=draw)
        self.ours = Token2Wav(self.module, {VOICE: self.voice})
        self.block = config.dit_config.block_size // config.dit_config.repeats

    def reference(self) -> Decoded:
        """Run Hugging Face's forward pass."""
        given = {"conditioning": self.voice.condition, "reference_mel": self.voice.mel}
        started = time.thread_time()
        self.module(self.codes[None], **given)
        used_s = time.thread_time() - started
        # This is not part of the measurement, because the mode intercepts each operation of the
        # module.
        with KeyedNoise(SEED):
            samples = self.module(self.codes[None], **given)
        return Decoded(samples.reshape(-1), used_s, used_s, len(self.codes))

    def decode(self, held: int, size: int) -> Decoded:
        """Run our decoder with codes in pieces of `size`."""
        began = time.thread_time()
        utterance = self.ours.open(VOICE, seed=SEED, held_blocks=held)
        made: list[torch.Tensor] = []
        first, needed = 0.0, 0
        for start in range(0, len(self.codes), size):
            end = min(start + size, len(self.codes))
            utterance.add(self.codes[start:end], finished=end == len(self.codes))
            if utterance.ready:
                started = time.thread_time()
                made += self.ours.begin([utterance]).run()
                if not needed:
                    first, needed = time.thread_time() - started, end
        return Decoded(torch.cat(made), first, time.thread_time() - began, needed)


@torch.inference_mode()
def run(arguments: argparse.Namespace) -> None:
    """Run the benchmark and print the results."""
    torch.set_num_threads(1)
    decoders = Decoders(arguments.layers, arguments.width, arguments.codes)
    audio_s = arguments.codes / CODES_PER_SECOND
    bare, whole = "reference", "whole"
    ways: dict[str, Callable[[], Decoded]] = {
        bare: decoders.reference,
        whole: partial(decoders.decode, 0, arguments.codes),
    }
    for held in range(arguments.most + 1):
        ways[f"{held} held back"] = partial(decoders.decode, held, decoders.block)
    sides = {name: DecoderSide(decode, audio_s) for name, decode in ways.items()}
    title = f"{arguments.layers} layers of width {arguments.width}, {audio_s:.1f} s of audio"
    with stated_machine():
        comparison = Comparison(
            [
                Side(name, side.measure, tuple(each for each in (bare, whole) if each != name))
                if name != bare
                else Side(name, side.measure)
                for name, side in sides.items()
            ],
            title,
        )
        asyncio.run(comparison.run(arguments.rounds))
        comparison.report()
    (exact,) = sides[whole].last
    print("\n| | largest difference from the whole | first audio: codes, s of them |")
    print("|---|--:|--:|")
    for name, side in sides.items():
        (made,) = side.last
        off = float((made.samples - exact.samples).abs().max())
        print(f"| {name} | {off:.1e} | {made.needed}, {made.needed / CODES_PER_SECOND:.2f} |")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines.token2wav")
    parser.add_argument("--layers", choices=DEPTHS, default="3", help="(default: 3)")
    parser.add_argument("--width", type=int, default=64, help="of the layers (default: 64)")
    parser.add_argument("--codes", type=int, default=240, help="50 a second (default: 240)")
    parser.add_argument("--most", type=int, default=6, help="held-back blocks (default: 6)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    run(parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
