"""Ming TTS's speed and the vendor's: `python -m tests.equality.ming_tts.ming_speed --help`.

CPU time of one thread to the first audio, and per second of audio, from the text to the samples,
without services around it: the vendor's `sample` with its streamed decoder, and antiphon's talker
and stream. Both draw the same numbers, so both say the same. Weights are random and the widths
small.

Runs in the environment of the recorder: see the README beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from antiphon.pipelines.ming_tts import FRAME_SAMPLES, SAMPLE_RATE_HZ
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.ming_tts.tiny_shape import MingShape
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side
from tests.equality.ming_tts.ming_cases import PLAIN, TEXTS, Case
from tests.equality.ming_tts.ming_record import PROMPT, Draws, import_vendor, make_speaker

SEED = 1
SHAPE = MingShape(
    hidden=256, intermediate=768, layers=8, heads=4, kv_heads=2,
    flow_width=256, flow_layers=8, flow_heads=4,
    aggregator_width=256, aggregator_layers=6, aggregator_heads=4,
    decoder_width=256, decoder_layers=8,
)  # fmt: skip


def ask_vendor(speaker: Any, draws: Draws, case: Case) -> Figures:
    """The vendor's steps and its streamed decoder, as its `generate` calls them."""
    draws.begin(SEED)
    model, state, past = speaker.model, (None, None, None), None
    samples, first = 0, 0.0
    begin = time.thread_time()
    for latents, last in model.sample(
        prompt=PROMPT, text=case.text, max_decode_steps=case.most_steps
    ):
        made, state, past = model.audio.decode(
            latents, past_key_values=past, use_cache=True, stream_state=state, last_chunk=last
        )
        samples += made.shape[-1]
        first = first or time.thread_time() - begin
    return _figures(first, time.thread_time() - begin, samples)


@torch.inference_mode()
def ask_ours(talker: Any, decoder: Any, case: Case) -> Figures:
    """Antiphon's steps and its stream."""
    from antiphon_services.ming_tts.code2wav.decoder import AudioDecoder, LatentPiece

    samples, first = 0, 0.0
    streams = AudioDecoder(decoder)
    state = streams.new_stream()
    begin = time.thread_time()
    for latents, last in talker.steps(case, talker.prompt(case), SEED):
        piece = LatentPiece(state, torch.from_numpy(latents), last)
        ((made, state),) = streams.advance([piece])
        samples += len(made)
        first = first or time.thread_time() - begin
    return _figures(first, time.thread_time() - begin, samples)


def _figures(first: float, total: float, samples: int) -> Figures:
    audio_s = samples / SAMPLE_RATE_HZ
    return {"CPU, s per s of audio": total / audio_s, "CPU to the first audio, s": first}


async def compare(given: argparse.Namespace) -> None:
    """Run the rounds of each number of steps."""
    draws = Draws()
    example = import_vendor(given.vendor, given.torchaudio, draws)
    # What antiphon imports has other names in the vendor's transformers.
    vendors: Any = importlib.import_module("transformers")
    vendors.PreTrainedConfig = vendors.PretrainedConfig
    importlib.import_module("transformers.activations").__dict__["SiLUActivation"] = torch.nn.SiLU
    sys.path.insert(0, str(Path(__file__).parent))
    from tests.equality.ming_tts.ming_in_process import TalkerInProcess, load_decoder

    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder = Path(name) / "tiny"
        build_tiny_ming(folder, SHAPE)
        speaker = make_speaker(example, folder)
        talker, decoder = TalkerInProcess(folder), load_decoder(folder)
        config = json.loads((folder / "config.json").read_text())
        print(f"{sum(each.numel() for each in speaker.model.parameters())} weights,", end=" ")
        print(f"{config['llm_config']['num_hidden_layers']} layers", flush=True)
        for steps in given.steps:
            case = Case("speed", PLAIN, TEXTS["long"], most_steps=steps)
            comparison = Comparison(
                [
                    Side("vendor", partial(ask_vendor, speaker, draws, case)),
                    Side("antiphon", partial(ask_ours, talker, decoder, case), ["vendor"]),
                ],
                f"{steps} steps, {steps * FRAME_SAMPLES / SAMPLE_RATE_HZ:g} s at most",
            )
            await comparison.run(given.rounds, warm_up=1)
            comparison.report()


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vendor", type=Path, help="a checkout of inclusionAI/Ming-omni-tts")
    parser.add_argument("torchaudio", type=Path, help="folder of an unpacked wheel of torchaudio")
    parser.add_argument("--steps", type=int, nargs="+", default=[4, 25])
    parser.add_argument("--rounds", type=int, default=3)
    torch.set_num_threads(1)
    with stated_machine():
        asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
