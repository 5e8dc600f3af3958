"""Streaming token2wav against whole: `python -m benchmarks.engines.token2wav --help`.

For each number of held-back blocks: the largest difference of a sample to the whole decode, how
many codes the first audio needs, and what it and all of the speech take, in CPU time of one
thread. Codes come a block at a time. Beside them the whole decode, ours and Hugging Face's. Rounds
interleave all sides, medians are printed. Weights are random; the widths are small, the number of
layers and where these look can be the released ones.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniToken2WavConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from antiphon.testing.qwen2_5_omni.noise import KeyedNoise
from antiphon.testing.qwen2_5_omni.tiny_weights import MEL_LEVEL, RULES
from services.qwen2_5_omni.token2wav.decoder import Token2Wav
from services.qwen2_5_omni.token2wav.voices import VoiceTensors

CODES_PER_SECOND = 50.0
VOICE, SEED = "voice", 7
TINY = {"num_hidden_layers": 3, "look_ahead_layers": [1], "look_backward_layers": [0, 2]}
RELEASED: dict[str, Any] = {}
DEPTHS = {"3": TINY, "22": RELEASED}


@dataclass(slots=True)
class Side:
    """One way to decode: samples, then what its rounds took in seconds, to the first samples
    and to the last. `needed` are the codes that the first samples needed."""

    name: str
    run: Callable[[], tuple[torch.Tensor, float, int]]
    samples: torch.Tensor | None = None
    needed: int = 0
    first: list[float] = field(default_factory=list)
    all: list[float] = field(default_factory=list)

    def measure(self) -> None:
        """One round."""
        started = time.thread_time()
        self.samples, first, self.needed = self.run()
        self.first.append(first)
        self.all.append(time.thread_time() - started)


class Decoders:
    """Hugging Face's module with random weights, and ours over the same."""

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

    def reference(self) -> tuple[torch.Tensor, float, int]:
        """Hugging Face's forward."""
        given = {"conditioning": self.voice.condition, "reference_mel": self.voice.mel}
        started = time.thread_time()
        self.module(self.codes[None], **given)
        taken = time.thread_time() - started
        # Apart from what is timed: the mode sees each operation of the module.
        with KeyedNoise(SEED):
            samples = self.module(self.codes[None], **given)
        return samples.reshape(-1), taken, len(self.codes)

    def decode(self, held: int, size: int) -> tuple[torch.Tensor, float, int]:
        """Ours, with codes in pieces of `size`."""
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
        return torch.cat(made), first, needed


@torch.inference_mode()
def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    decoders = Decoders(arguments.layers, arguments.width, arguments.codes)
    whole = Side("whole", lambda: decoders.decode(0, arguments.codes))
    sides = [
        Side("reference", decoders.reference),
        whole,
        *(
            Side(f"{held} held back", lambda held=held: decoders.decode(held, decoders.block))
            for held in range(arguments.most + 1)
        ),
    ]
    for _ in range(arguments.rounds):
        for side in sides:
            side.measure()
    seconds = arguments.codes / CODES_PER_SECOND
    print(f"{arguments.layers} layers of width {arguments.width}, {seconds:.1f} s of audio")
    print("| | largest difference | first audio: codes, s of them | CPU s | real-time factor |")
    print("|---|--:|--:|--:|--:|")
    for side in sides:
        assert side.samples is not None
        assert whole.samples is not None
        off = float((side.samples - whole.samples).abs().max())
        print(
            f"| {side.name} | {off:.1e} | {side.needed}, {side.needed / CODES_PER_SECOND:.2f} "
            f"| {statistics.median(side.first):.2f} | {statistics.median(side.all) / seconds:.2f} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
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
