"""Stages of the released sizes in this process: loaded and warmed up as services are."""

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
    """One stage at a time: the thinker's weights alone take 61 GB.

    Rows that follow each other and ask for the same stage share it. `model` is the directory of a
    checkpoint without weights, which `write` makes.
    """

    def __init__(self, device: torch.device, directory: Path) -> None:
        self.device, self.model = device, directory / "released"
        self._key: object = None
        self._stage: LoadedStage | None = None

    def write(self) -> Figures:
        """Write all of a checkpoint but weights: see `write_model`."""
        return write_model(self.device, self.model)

    def load(self, role: str, way: Way, *, slots: int, context: int) -> LoadedStage:
        """The stage with these settings, and without segments."""
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
        """Free the stage's memory."""
        self._stage = self._key = None
        give_memory_back()


def write_model(device: torch.device, directory: Path) -> Figures:
    """Write a checkpoint's directory without weights, except for the thinker's words.

    The talker looks words up in the file; every other weight is made where it is used. Every word
    that may be drawn has a text.
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
    """What `run` returns on a thread that has run nothing before.

    A service loads and warms up on one thread and steps on another. What torch and its libraries
    keep for each thread, such as plans and workspaces, is made again there.
    """
    made: list[T] = []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            made.append(run())
        # Raised again on the caller's thread.
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call, name="engine")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return made[0]


class FreshLengths:
    """Lengths near those of `bases` in turn, none of which comes twice.

    A length that was measured before finds plans and memory made for it; a service's lengths
    seldom repeat.
    """

    def __init__(self, bases: tuple[int, ...]) -> None:
        self._bases = bases
        self._used: set[int] = set()

    def take(self, count: int) -> list[int]:
        """So many lengths, each at or above its base."""
        return [self._next(self._bases[each % len(self._bases)]) for each in range(count)]

    def _next(self, base: int) -> int:
        while base in self._used:
            base += 1
        self._used.add(base)
        return base
