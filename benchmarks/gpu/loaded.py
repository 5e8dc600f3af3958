"""Loads stages with the released sizes in this process, and warms them up like a service."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import LoadedStage
from antiphon_testkit.qwen3_omni.tiny_tokenizer import PREPROCESSOR, TOKENIZER
from benchmarks.gpu.report import Figures, give_memory_back
from benchmarks.gpu.scale import Way
from benchmarks.gpu.stage import load_random
from benchmarks.gpu.weights import Sizes, config_of, sizes_of

T = TypeVar("T")


class Stages:
    """Provides one stage at a time, because the thinker's weights alone require 61 GB.

    Consecutive rows that request the same stage share it. `model` is the directory of a checkpoint
    without weights, which `write` creates.
    """

    def __init__(self, device: torch.device, directory: Path) -> None:
        self.device, self.model = device, directory / "released"
        self._key: object = None
        self._stage: LoadedStage | None = None

    def write(self) -> Figures:
        """Write a checkpoint without weights, as described in `write_model`."""
        return write_model(self.device, self.model)

    def load(self, role: str, way: Way, *, slots: int, context: int) -> LoadedStage:
        """Return the stage with these settings, without any segments."""
        key = role, way, slots, context
        if self._stage is None or self._key != key:
            self.forget()
            config = StageConfig(
                device=str(self.device),
                engine="torch",
                slots=slots,
                context_limit=context,
                threads=torch.get_num_threads(),
                **way.settings,
            )
            self._stage, self._key = load_random(PIPELINE, role, self.model, config), key
        return self._stage

    def forget(self) -> None:
        """Release the memory of the stage."""
        self._stage = self._key = None
        give_memory_back()


def write_model(device: torch.device, directory: Path) -> Figures:
    """Write the directory of a checkpoint without weights, except for the thinker's word
    embeddings.

    The talker reads word embeddings from the file. All other weights are created where they are
    used. Every token that may be drawn has a text.
    """
    from safetensors.torch import save_file
    from transformers import GenerationConfig

    sizes: Sizes = sizes_of(device)
    directory.mkdir()
    vocabulary = TOKENIZER.write(directory, entries=sizes.entries)
    PREPROCESSOR.write(directory)
    config = config_of(sizes, vocabulary)
    config.save_pretrained(directory)
    ids = vocabulary.ids
    GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"]
    ).save_pretrained(directory)
    rows = config.thinker_config.text_config.vocab_size
    shape = (rows, sizes.shape.hidden)
    words = torch.randn(shape, device=device, dtype=torch.bfloat16).cpu()
    path = directory / "model.safetensors"
    save_file({"thinker.model.embed_tokens.weight": words}, path, {"format": "pt"})
    return {"words": rows, "bytes": path.stat().st_size}


def on_new_thread(run: Callable[[], T]) -> T:
    """Return the result of `run` on a new thread.

    A service loads and warms up on one thread and runs steps on another one. Thread-specific data
    of torch and its libraries, such as plans and workspaces, has to be created again on the new
    thread.
    """
    made: list[T] = []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            made.append(run())
        # The error is raised again on the thread of the caller.
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, name="engine")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return made[0]


class FreshLengths:
    """Returns lengths close to `bases`, without ever repeating a length.

    If a length has already been measured, plans and memory for it exist. The lengths in a service
    are rarely the same.
    """

    def __init__(self, bases: tuple[int, ...]) -> None:
        self._bases = bases
        self._used: set[int] = set()

    def take(self, count: int) -> list[int]:
        """Return `count` lengths. Each length is at least its base."""
        return [self._next(self._bases[each % len(self._bases)]) for each in range(count)]

    def _next(self, base: int) -> int:
        while base in self._used:
            base += 1
        self._used.add(base)
        return base
