"""Compare chunk policies: `python -m benchmarks.engines.policies --help`.

A policy determines how many codec frames are sent to code2wav at a time. With small chunks, audio
starts earlier but there are more calls. With large chunks, playback may be interrupted if the chunk
size increases too quickly. The code2wav engine decodes an utterance with each policy, and the CPU
time of every chunk is recorded. The default policy is the baseline.

Given these times and the talker's time per frame, the benchmark computes when each chunk can be
played. The results are the time from the start of the talker to the first audio, and the maximum
shortage of a player that starts with the first audio.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Emitted, Failed, InputChunk
from antiphon.runtime.session.chunking import next_boundary
from antiphon.values.segment import ChunkPolicy, FinishReason, SegmentKey
from antiphon_services.qwen3_omni.code2wav.load import EDGES
from antiphon_services.vocoder.engine import VocoderEngine
from antiphon_tools.load.player import underrun
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.engines.code2wav import WANTED, Engines, decoder_config

SAMPLE_RATE_HZ = 24_000
POLICIES = (
    PIPELINE.chunk_policy,
    ChunkPolicy(1, (), 1),
    ChunkPolicy(1, (), 4),
    ChunkPolicy(1, (), 12),
    ChunkPolicy(1, (2, 4, 8), 12),
    ChunkPolicy(1, (2, 4, 8), 16),
    ChunkPolicy(1, (1, 2, 4, 8), 12),
    ChunkPolicy(1, (1, 1, 2, 2, 3, 4, 6), 8),
    ChunkPolicy(1, (1, 1, 2, 2, 3, 3, 4, 4), 6),
    ChunkPolicy(2, (4, 8), 12),
    ChunkPolicy(4, (8,), 12),
    ChunkPolicy(4, (), 25),
    ChunkPolicy(25, (), 25),
)
"""The first policy is the default. The last one is a window of a stateless decoder."""


@dataclass(slots=True)
class PolicyRun:
    """A chunk policy, with the last frame of each of its chunks, and the CPU time per round and
    chunk.
    """

    policy: ChunkPolicy
    ends: list[int]
    audio_s: list[float] = field(default_factory=list)
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def chunk_s(self) -> list[float]:
        """The median time of each chunk in seconds."""
        return [statistics.median(each) for each in zip(*self.rounds, strict=True)]

    def pieces(self, frame_s: float) -> list[tuple[float, float]]:
        """Return when each chunk has been decoded, given the talker's time per frame, and its
        duration.
        """
        done_s, pieces = 0.0, []
        for end, chunk_s, audio_s in zip(self.ends, self.chunk_s, self.audio_s, strict=True):
            done_s = max(done_s, end * frame_s) + chunk_s
            pieces.append((done_s, audio_s))
        return pieces


def make_run(policy: ChunkPolicy, total: int) -> PolicyRun:
    """Return the chunks that the talker would send for a number of frames."""
    ends: list[int] = []
    while not ends or ends[-1] < total:
        ends.append(min(next_boundary(ends[-1] if ends else 0, policy), total))
    return PolicyRun(policy, ends)


def measure(run: PolicyRun, engines: Engines) -> Figures:
    """Decode all chunks one after another, and record the time of each."""
    engine = VocoderEngine(engines.decoder, EDGES, len(engines.codes), 1)
    key = SegmentKey("one", 0)
    engine.admit(key, WANTED)
    took, audio_s = [], []
    for start, end in pairwise((0, *run.ends)):
        finish = FinishReason.STOP if end == run.ends[-1] else None
        tensors = {"codes": engines.codes[start:end]}
        started = time.thread_time()
        engine.accept(key, InputChunk("codes", start, tensors, finish is not None, finish))
        audio_s.append(_decode(engine, key) / SAMPLE_RATE_HZ)
        took.append(time.thread_time() - started)
    run.audio_s = audio_s
    run.rounds.append(took)
    return {"CPU, ms per s of audio": 1e3 * sum(took) / sum(audio_s)}


def _decode(engine: VocoderEngine, key: SegmentKey) -> int:
    """Decode all input that has arrived, and return the number of samples."""
    samples = 0
    while engine.awaited_edge(key) is None:
        for event in engine.step():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Emitted):
                samples += len(event.tensors.get("samples", ()))
            else:
                engine.release(key)
                return samples
    return samples


def report(runs: Sequence[PolicyRun], frame_ms: Sequence[float]) -> None:
    """Print a line for each policy."""
    print("\nfirst audio, ms / shortage, ms, at so many milliseconds a frame")
    heads = "".join(f"{f'{each:g} ms':>16}" for each in frame_ms)
    print(f"{'first, ramp, steady':38}{'chunks per s':>14}{heads}")
    for run in runs:
        cells = ""
        for each in frame_ms:
            pieces = run.pieces(each / 1e3)
            cells += f"{1e3 * pieces[0][0]:9.0f} /{1e3 * underrun(pieces):5.0f}"
        print(f"{name_of(run.policy):38}{len(run.ends) / sum(run.audio_s):14.1f}{cells}")


def name_of(policy: ChunkPolicy) -> str:
    """Format the numbers of a policy."""
    return f"{policy.first}, {list(policy.ramp)}, {policy.steady}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the results."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    engines = Engines(decoder_config(options.shape), options.frames)
    runs = [make_run(policy, options.frames) for policy in POLICIES]
    default = name_of(POLICIES[0])
    sides = [
        Side(
            name_of(run.policy),
            partial(measure, run, engines),
            (default,) if run is not runs[0] else (),
        )
        for run in runs
    ]
    with stated_machine():
        comparison = Comparison(sides, f"policies, {options.shape} code2wav")
        asyncio.run(comparison.run(options.rounds))
        comparison.report()
        for run in runs:
            # The first round was a warm-up.
            del run.rounds[0]
        report(runs, options.frame_ms)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.engines.policies", description=__doc__)
    parser.add_argument("--shape", choices=("released", "tiny"), default="released")
    parser.add_argument("--frames", type=int, default=100, help="of the utterance (100)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--frame-ms", type=float, nargs="+", default=[8.0, 28.0, 40.0, 48.0],
        help="the talker's time for a frame of 80 ms (8 28 40 48)",
    )  # fmt: skip
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
