"""Code2wav's speed and the vendor's: `python -m tests.equality.cosyvoice3.cosy_speed --help`.

For each number of codes: CPU time of one thread to the first audio, and of all calls per second of
audio. The vendor's side is its `tts`, whole and with `stream=True`, from the hop that a process
begins with; ours decodes whole, and streams with all computed blocks kept and with none. Codes come
one by one and are not counted. Weights are random and the widths small.

With `--services PYTHON`, an environment that runs our services: the time from a text to the first
audio and to the last through gateway, talker and code2wav, and of the vendor's streaming in this
process. Both speak with a voice of the checkpoint and draw the same codes.

Runs in the environment of the recorder: see the README beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import antiphon
from antiphon.pipelines.cosyvoice3 import PIPELINE
from antiphon_services.cosyvoice3.code2wav.decoder import SpeechDecoder
from antiphon_services.flow.work import run_to_end
from antiphon_testkit.cosyvoice3.tiny_checkpoint import build_tiny_cosyvoice
from antiphon_testkit.cosyvoice3.tiny_shape import CosyVoiceShape
from antiphon_testkit.flat_settings import stage_config
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import descendants, own_and_cpu_s_of
from benchmarks.comparison.rounds import Comparison, Figures, Side
from tests.equality.cosyvoice3.cosy_cases import ADDED_VOICE, TEXTS, draw_few_ends
from tests.equality.cosyvoice3.cosy_masked import CodesCase, voice_and_codes
from tests.equality.cosyvoice3.cosy_record import Draws, Narrow, import_vendor, inject

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


@dataclass(frozen=True, slots=True)
class Text:
    """A text that the vendor's `speaker` and our services say with the same draws."""

    text: str
    seed: int
    samples: int
    speaker: Any
    draws: Draws
    client: antiphon.AsyncClient
    services: Sequence[int]

    def ask_vendor(self) -> Figures:
        """Its streaming, from the hop that a process begins with."""
        self.draws.begin(self.seed)
        self.speaker.model.token_hop_len = FIRST_HOP
        watch = Watch()
        for each in self.speaker.inference_zero_shot(
            self.text, "", "", zero_shot_spk_id=ADDED_VOICE.capitalize(), stream=True
        ):
            watch.heard(each["tts_speech"].shape[1])
        assert watch.samples == self.samples
        return watch.figures()

    async def ask_services(self) -> Figures:
        """A stream from the gateway."""
        watch = Watch(self.services)
        async for event in self.client.generate(
            self.text, voice=ADDED_VOICE, seed=self.seed, modalities=("audio",)
        ):
            if isinstance(event, antiphon.AudioDelta):
                watch.heard(len(event.pcm16) // 2)
        assert watch.samples == self.samples
        return watch.figures()


class Watch:
    """The times of one answer, and the CPU time of this process and of `others`."""

    def __init__(self, others: Sequence[int] = ()) -> None:
        self.samples, self._first = 0, 0.0
        self._others = others
        self._cpu, self._begin = own_and_cpu_s_of(others), time.perf_counter()

    def heard(self, samples: int) -> None:
        """So much audio has come."""
        self._first = self._first or time.perf_counter() - self._begin
        self.samples += samples

    def figures(self) -> Figures:
        """What it took until now."""
        return {
            "CPU, s": own_and_cpu_s_of(self._others) - self._cpu,
            "first audio, s": self._first,
            "all audio, s": time.perf_counter() - self._begin,
        }


def seed_of(speaker: Any, draws: Draws, text: str, least: int) -> tuple[int, int]:
    """A seed with which the text has at least so many codes, and the samples that they are."""
    for seed in range(1000):
        draws.begin(seed)
        try:
            spoken = list(
                speaker.inference_zero_shot(text, "", "", zero_shot_spk_id=ADDED_VOICE.capitalize())
            )
        except (Narrow, RuntimeError):
            continue
        samples = sum(each["tts_speech"].shape[1] for each in spoken)
        if samples >= 960 * least:
            return seed, samples
    raise LookupError(f"no seed gives {least} codes")


async def compare_services(
    given: argparse.Namespace, folder: Path, speaker: Any, draws: Draws
) -> None:
    """Start the services and run the rounds of each number of codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    deployment = {
        "model": str(folder),
        "stages": {role: {"slots": 2} for role in PIPELINE.roles},
        "gateway": {"http_listen": "127.0.0.1:0", "grpc_listen": address},
    }
    config = folder.parent / "deployment.yaml"
    config.write_text(json.dumps(deployment))
    process = await asyncio.create_subprocess_exec(
        given.services, "-m", "antiphon_tools.launcher", "up", "--config", str(config),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        lines = process.stdout
        assert lines is not None
        while not (line := await lines.readline()).startswith(b"ready"):
            if not line:
                raise ChildProcessError("the services ended at their start")
        # What they log is read until they end.
        reading = asyncio.create_task(lines.read())
        try:
            async with antiphon.AsyncClient(address) as client:
                services = [process.pid, *descendants(process.pid)]
                for count in given.codes:
                    seed, samples = seed_of(speaker, draws, given.text, count)
                    asked = Text(given.text, seed, samples, speaker, draws, client, services)
                    vendor = "vendor, stream=True"
                    comparison = Comparison(
                        [
                            Side(vendor, asked.ask_vendor),
                            Side("gateway", asked.ask_services, [vendor]),
                        ],
                        f"a text of {samples / 24_000:g} s",
                    )
                    await comparison.run(given.rounds)
                    comparison.report()
        finally:
            reading.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def load(folder: Path, cache_bytes: int) -> SpeechDecoder:
    """Our decoder of a checkpoint, beside the vendor's transformers, where a class that the loader
    imports has another name."""
    vendors: Any = importlib.import_module("transformers")
    vendors.PreTrainedConfig = vendors.PretrainedConfig
    from antiphon_services.cosyvoice3.code2wav.load import load_decoder

    return load_decoder(folder, stage_config(flow_cache_bytes=cache_bytes))


async def compare(given: argparse.Namespace) -> None:
    """Run the rounds of each number of codes."""
    shape = CosyVoiceShape(
        flow_width=given.width, flow_layers=given.layers, flow_heads=given.width // 64,
        flow_head_dim=64,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tiny"
        build_tiny_cosyvoice(folder, shape)
        draw_few_ends(folder, asks=False)
        speaker, draws = import_vendor(given.vendor, given.torchaudio)(str(folder)), Draws()
        logging.disable(logging.INFO)
        inject(speaker, draws)
        if given.services:
            await compare_services(given, folder, speaker, draws)
            return
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
    parser.add_argument("--services", help="python of an environment that runs our services")
    parser.add_argument("--text", default=TEXTS["english"], help="for the services to say")
    torch.set_num_threads(1)
    with stated_machine():
        asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
