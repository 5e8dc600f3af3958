"""Code2wav's speed and the vendor's: `python -m tests.equality.cosyvoice3.cosy_speed --help`.

For each number of codes: CPU time of one thread to the first audio, and of all calls per second of
audio. The vendor's side is its `tts`, whole and with `stream=True`, from the hop that a process
begins with; ours decodes whole, and streams with all computed blocks kept and with none. Codes come
one by one and are not counted. Weights are random and the widths small.

Runs in the environment of the recorder: see the README beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon_services.cosyvoice3.code2wav.decoder import SpeechDecoder
from antiphon_services.flow.work import run_to_end
from antiphon_testkit.cosyvoice3.tiny_checkpoint import build_tiny_cosyvoice
from antiphon_testkit.cosyvoice3.tiny_shape import CosyVoiceShape
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side
from tests.equality.cosyvoice3.cosy_masked import CodesCase, voice_and_codes
from tests.equality.cosyvoice3.cosy_record import Draws, import_vendor, inject

CODES_PER_SECOND = 25.0
FIRST_HOP = 25
"""The vendor's for the first request of a process: it grows, and stays grown for later ones."""
KEPT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Utterance:
    """The vendor's model and our decoders, asked for the codes of one `case`."""

    case: CodesCase
    vendor: Any
    kept: SpeechDecoder
    again: SpeechDecoder

    def ask_vendor(self, *, stream: bool) -> Figures:
        """What `tts` takes for codes that are given, as in the vendor's voice conversion."""
        voice, codes = voice_and_codes(self.case)
        self.vendor.token_hop_len = FIRST_HOP
        begin = time.thread_time()
        spoken = self.vendor.tts(
            source_speech_token=torch.tensor(codes.astype(np.int32))[None],
            flow_prompt_speech_token=torch.tensor(voice["prompt_codes"])[None],
            prompt_speech_feat=torch.tensor(voice["prompt_mel"])[None],
            flow_embedding=torch.tensor(voice["speaker"]),
            stream=stream,
        )
        samples = first = 0.0
        for each in spoken:
            first = first or time.thread_time() - begin
            samples += each["tts_speech"].shape[1]
        assert samples == 960 * len(codes)
        return self._figures(first, time.thread_time() - begin)

    @torch.inference_mode()
    def ask_ours(self, *, whole: bool, kept: bool) -> Figures:
        """What decoding takes."""
        decoder = self.kept if kept else self.again
        tensors, codes = voice_and_codes(self.case)
        voice = decoder.voice(tensors["speaker"], tensors["prompt_codes"], tensors["prompt_mel"])
        samples, first = 0, 0.0
        begin = time.thread_time()
        decoding = decoder.open(voice, whole=whole)
        for come in range(1, len(codes) + 1):
            finished = come == len(codes)
            while decoding.ready(come, finished=finished):
                samples += len(run_to_end(decoding.advance(codes[:come], finished=finished)))
                first = first or (time.thread_time() - begin if samples else 0.0)
        decoding.close()
        assert samples == 960 * len(codes)
        return self._figures(first, time.thread_time() - begin)

    def _figures(self, first: float, total: float) -> Figures:
        audio_s = self.case.codes / CODES_PER_SECOND
        return {"CPU, s per s of audio": total / audio_s, "CPU to the first audio, s": first}


def load(folder: Path, cache_bytes: int) -> SpeechDecoder:
    """Our decoder of a checkpoint, beside the vendor's transformers, where a class that the loader
    imports has another name."""
    vendors: Any = importlib.import_module("transformers")
    vendors.PreTrainedConfig = vendors.PretrainedConfig
    from antiphon_services.cosyvoice3.code2wav.load import load_decoder

    return load_decoder(folder, StageConfig(flow_cache_bytes=cache_bytes))


async def compare(given: argparse.Namespace) -> None:
    """Run the rounds of each number of codes."""
    shape = CosyVoiceShape(
        flow_width=given.width, flow_layers=given.layers, flow_heads=given.width // 64,
        flow_head_dim=64,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tiny"
        build_tiny_cosyvoice(folder, shape)
        speaker = import_vendor(given.vendor, given.torchaudio)(str(folder))
        logging.disable(logging.INFO)
        inject(speaker, Draws())
        kept, again = load(folder, KEPT_BYTES), load(folder, 0)
    for count in given.codes:
        case = CodesCase(given.prompt, count)
        asked = Utterance(case, speaker.model, kept, again)
        whole, streamed = "vendor, whole", "vendor, stream"
        comparison = Comparison(
            [
                Side(whole, partial(asked.ask_vendor, stream=False)),
                Side("whole", partial(asked.ask_ours, whole=True, kept=True), [whole]),
                Side(streamed, partial(asked.ask_vendor, stream=True)),
                Side("stream, kept", partial(asked.ask_ours, whole=False, kept=True), [streamed]),
                Side("stream, again", partial(asked.ask_ours, whole=False, kept=False), [streamed]),
            ],
            f"{count} codes, {count / CODES_PER_SECOND:g} s",
        )
        await comparison.run(given.rounds, warm_up=0)
        comparison.report()


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vendor", type=Path, help="folder of the vendor's checkouts")
    parser.add_argument("torchaudio", type=Path, help="folder of an unpacked wheel of torchaudio")
    parser.add_argument("--layers", type=int, default=8, help="of the flow")
    parser.add_argument("--width", type=int, default=128, help="of the flow, a multiple of 64")
    parser.add_argument("--prompt", type=int, default=60, help="codes of the voice")
    parser.add_argument("--codes", type=int, nargs="+", default=[50, 150, 300])
    parser.add_argument("--rounds", type=int, default=2)
    torch.set_num_threads(1)
    with stated_machine():
        asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
