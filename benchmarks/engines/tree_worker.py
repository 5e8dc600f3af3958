"""Runs the torch engines of a checkout as a child process of `benchmarks.engines.trees`.

The script is run with another checkout first on PYTHONPATH. It therefore only uses features that
all checkouts have: `load` of the stages, `antiphon_testkit.drive_engine` and the format of chunks.
Each line of standard input names a load. Each line of standard output is JSON. It contains the CPU
time of the engine's thread per unit of output in milliseconds, and a digest of the output.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

# In a checkout without import roots, the packages have other names.
if not Path("services/antiphon_services").is_dir():
    sys.modules["antiphon_services"] = importlib.import_module("services")
    sys.modules["antiphon_testkit"] = importlib.import_module("antiphon.testing")
# In a checkout without the package `values`, these modules are directly below `antiphon`.
if not Path("antiphon/values").is_dir():
    for value in ("chunk", "conversation", "sampling", "segment"):
        sys.modules[f"antiphon.values.{value}"] = importlib.import_module(f"antiphon.{value}")

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import read_config
from antiphon.runtime.engine import Completed, Emitted, Failed, InputChunk, SegmentSettings
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.drive_engine import await_ready

SESSIONS = 16
CONTEXT_LIMIT = 1024
PROMPT_ROWS, SPOKEN = 48, 24
SINGLE_CODES = 96
"""The number of codes for token2wav, whose codes have a single group. It corresponds to eight
blocks.
"""
GREEDY = Sampling(0.0, 50, 1.0, 1.05, seed=0, max_tokens=SPOKEN)
SAMPLED = replace(GREEDY, temperature=0.9)


@dataclass(frozen=True, slots=True)
class Work:
    """The module with a stage's `load`, its checkpoint, its output edge, and the chunks of a
    session.
    """

    module: str
    directory: Path
    edge: str
    chunks: Callable[[int], Sequence[InputChunk]]
    slots: int = SESSIONS
    voice: str = ""


class Worker:
    """The engines of this checkout, with the checkpoints in a directory."""

    def __init__(self, directory: Path) -> None:
        self._works = works_in(directory)
        self._engines = {
            name: importlib.import_module(work.module)
            .load(work.directory, StageConfig(slots=work.slots, context_limit=CONTEXT_LIMIT))
            .engine
            for name, work in self._works.items()
        }
        self._runs = 0

    def run(self, name: str, way: str, sessions: int) -> dict[str, Any]:
        """Run concurrent sessions, and return the CPU time from the first step to the last."""
        work, engine = self._works[name], self._engines[name]
        if hasattr(engine, "forget"):
            engine.forget()
        self._runs += 1
        keys = [SegmentKey(f"session {self._runs} {each}", 0) for each in range(sessions)]
        sampling = GREEDY if way == "greedy" else SAMPLED
        for at, key in enumerate(keys):
            wanted = replace(sampling, seed=at)
            engine.admit(key, SegmentSettings(work.voice, wanted, frozenset({work.edge})))
            for chunk in work.chunks(at):
                engine.accept(key, chunk)
        await_ready(engine, keys)
        made: dict[SegmentKey, list[np.ndarray[Any, Any]]] = {key: [] for key in keys}
        running, started = set(keys), time.thread_time()
        while running:
            for event in engine.step():
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Emitted) and event.edge == work.edge:
                    made[event.key] += event.tensors.values()
                if isinstance(event, Completed):
                    engine.release(event.key)
                    running.remove(event.key)
        used_s = time.thread_time() - started
        return {"ms": 1e3 * used_s, **_digest(made.values())}


def _digest(outputs: Any) -> dict[str, Any]:
    """Return a digest of the output that does not depend on how it is divided.

    For samples, which may differ slightly, the sum is included as well.
    """
    digest, count, total = hashlib.sha256(), 0, 0.0
    for parts in outputs:
        for each in parts:
            digest.update(np.ascontiguousarray(each).tobytes())
            count += len(each)
            total += float(np.abs(each.astype(np.float64)).sum())
    return {"digest": digest.hexdigest()[:16], "count": count, "sum": total}


def works_in(directory: Path) -> dict[str, Work]:
    """Return the engines to run, based on the directories that `benchmarks.engines.trees` has
    written.
    """
    works: dict[str, Work] = {}
    for size in ("tiny", "medium"):
        omni = directory / f"qwen3_omni-{size}"
        if not omni.is_dir():
            continue
        works[f"{size} thinker"] = Work(
            "antiphon_services.qwen3_omni.thinker.load", omni, "text", _asked
        )
        works[f"{size} talker"] = Work(
            "antiphon_services.qwen3_omni.talker.load", omni, "codes", _prompt_of(read_config(omni))
        )
        works[f"{size} code2wav"] = Work(
            "antiphon_services.qwen3_omni.code2wav.load",
            omni,
            "audio",
            _frames_of(read_config(omni)["code2wav_config"]),
        )
    omni25, tts = directory / "qwen2_5_omni", directory / "qwen3_tts"
    if omni25.is_dir():
        config = read_config(omni25)
        works["tiny talker of Qwen2.5-Omni"] = Work(
            "antiphon_services.qwen2_5_omni.talker.load",
            omni25,
            "codes",
            _rows_of(int(config["talker_config"]["embedding_size"])),
        )
        entries = int(config["token2wav_config"]["dit_config"]["num_embeds"])
        works["tiny token2wav of Qwen2.5-Omni"] = Work(
            "antiphon_services.qwen2_5_omni.token2wav.load",
            omni25,
            "audio",
            _codes_of(1, entries, SINGLE_CODES),
            voice="chelsie",
        )
    if tts.is_dir():
        works["tiny talker of Qwen3-TTS"] = Work(
            "antiphon_services.qwen3_tts.talker.load", tts, "codes", _asked
        )
        codec = read_config(tts / "speech_tokenizer")["decoder_config"]
        works["tiny code2wav of Qwen3-TTS"] = Work(
            "antiphon_services.qwen3_tts.code2wav.load", tts, "audio", _frames_of(codec)
        )
    return works


def _asked(number: int) -> list[InputChunk]:
    words = f"{number} of the people ask: " + "what is the time of the water? " * 2
    conversation = Conversation((ConversationMessage("user", (TextPart(words),)),), ())
    return [InputChunk("input", 0, to_tensors(conversation), True, FinishReason.STOP)]


def _prompt_of(config: dict[str, Any]) -> Callable[[int], Sequence[InputChunk]]:
    from antiphon.pipelines.qwen3_omni import SpecialIds

    special = SpecialIds.from_config(config)

    def chunks(number: int) -> Sequence[InputChunk]:
        words = np.random.default_rng(number).integers(20, 200, PROMPT_ROWS + SPOKEN)
        header = [special.im_start, special.assistant, 10]
        ids = [special.im_start, special.user, *words[:PROMPT_ROWS], *header]
        reply = words[PROMPT_ROWS:].astype(np.int32)
        return (
            InputChunk("prompt", 0, {"ids": np.array(ids, np.int32)}, segment_finished=True),
            InputChunk("tokens", 0, {"ids": reply}, segment_finished=True),
        )

    return chunks


def _rows_of(width: int) -> Callable[[int], Sequence[InputChunk]]:
    def chunks(number: int) -> Sequence[InputChunk]:
        rows = np.random.default_rng(number).standard_normal((PROMPT_ROWS + SPOKEN, width))
        there = rows.astype(np.float32)
        prompt = {"rows": there[:PROMPT_ROWS]}
        return (
            InputChunk("prompt", 0, {"ids": np.zeros(PROMPT_ROWS, np.int32)}),
            InputChunk("prompt", 0, prompt, segment_finished=True),
            InputChunk("tokens", 0, {"rows": there[PROMPT_ROWS:]}, segment_finished=True),
        )

    return chunks


def _frames_of(config: dict[str, Any]) -> Callable[[int], Sequence[InputChunk]]:
    return _codes_of(int(config["num_quantizers"]), int(config["codebook_size"]), SPOKEN)


def _codes_of(groups: int, entries: int, count: int) -> Callable[[int], Sequence[InputChunk]]:
    """Return a function that creates a number of frames, with 4 frames per chunk."""

    def chunks(number: int) -> Sequence[InputChunk]:
        codes = np.random.default_rng(number).integers(0, entries, (count, groups))
        made = codes.astype(np.uint16)
        ends = range(4, count + 1, 4)
        return [
            InputChunk(
                "codes",
                end - 4,
                {"codes": made[end - 4 : end]},
                end == count,
                FinishReason.STOP if end == count else None,
            )
            for end in ends
        ]

    return chunks


def main() -> None:
    """Process commands in the form `NAME|greedy or sampled|SESSIONS` until standard input ends."""
    torch.set_num_threads(1)
    worker = Worker(Path(sys.argv[1]))
    print(json.dumps({"ready": sorted(worker._works)}), flush=True)
    for line in sys.stdin:
        name, way, sessions = line.strip().split("|")
        print(json.dumps(worker.run(name, way, int(sessions))), flush=True)


if __name__ == "__main__":
    main()
