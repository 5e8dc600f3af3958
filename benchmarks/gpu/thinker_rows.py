"""What a forward of the torch thinker takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from benchmarks.engines.stopwatch import stopwatch_of
from benchmarks.gpu.loads import (
    Way,
    bucketing_of,
    scale_of,
    summary,
)
from benchmarks.gpu.report import Figures, Row, give_memory_back, mirrored
from benchmarks.gpu.weights import (
    random_thinker,
    sizes_of,
    special_ids,
    whole_config,
)
from services.qwen3_omni.thinker.towers import Omni3Towers
from services.thinker.model import ThinkerFeed, ThinkerModel


def thinker_rows(device: torch.device) -> list[Row]:
    """Prefill of one prompt, and decoding; one model for all."""
    scale = scale_of(device)
    made: dict[str, ThinkerModel] = {}

    def model(slots: int, context: int, way: Way) -> ThinkerModel:
        # 61 GB of weights at the released size: there is room for one.
        made.clear()
        give_memory_back()
        made["now"] = _thinker(device, slots, context, way)
        return made["now"]

    rows = [
        Row(f"thinker, prefill of {rows}", partial(_prefill, device, model, rows))
        for rows in scale.prefills
    ]
    counts = [each for each in scale.sessions if each != 4 or device.type == "cpu"]
    rows += mirrored(
        [
            Row(f"thinker, {way}, {count} sessions", partial(_decode, device, model, way, count))
            for way in (Way(False), Way(True))
            for count in counts
        ]
    )
    rows.append(Row("thinker, given back", lambda: {"models": len(made), **_forget(made)}))
    return rows


def _forget(made: dict[str, ThinkerModel]) -> Figures:
    made.clear()
    return {}


def _thinker(device: torch.device, slots: int, context: int, way: Way) -> ThinkerModel:
    sizes = sizes_of(device)
    config = whole_config(sizes)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return ThinkerModel(
        random_thinker(config, dtype, device),
        special=special_ids(config),
        towers=Omni3Towers(),
        tapped_layer=sizes.shape.accept_layer,
        slots=slots,
        context_limit=context,
        bucketing=bucketing_of(way, device),
    )


_MakeThinker = Callable[[int, int, Way], ThinkerModel]


@torch.inference_mode()
def _prefill(device: torch.device, make: _MakeThinker, rows: int) -> Figures:
    scale = scale_of(device)
    model, stopwatch = make(1, rows, Way(False)), stopwatch_of(device)
    laps: list[float] = []
    for _ in range(min(5, scale.rounds)):
        stopwatch.start()
        model.forward([_feed(0, 0, rows)])
        stopwatch.lap()
        laps += stopwatch.laps_ms()
    return summary(laps[1:]) | {"rows": rows}


@torch.inference_mode()
def _decode(device: torch.device, make: _MakeThinker, way: Way, sessions: int) -> Figures:
    scale = scale_of(device)
    model, stopwatch = make(sessions, scale.context, way), stopwatch_of(device)
    lengths = [scale.prompt_rows[each % len(scale.prompt_rows)] for each in range(sessions)]
    for slot, rows in enumerate(lengths):
        model.forward([_feed(slot, 0, rows)])
    stopwatch.start()
    for turn in range(scale.tokens):
        fed = model.forward([_feed(slot, rows + turn, 1) for slot, rows in enumerate(lengths)])
        # As an engine does: the host chooses by what came.
        torch.stack([each.logits for each in fed if each.logits is not None]).argmax(-1).cpu()
        stopwatch.lap()
    return summary(stopwatch.laps_ms()[1:])


def _feed(slot: int, start: int, rows: int) -> ThinkerFeed:
    """So many ids of plain words, of which the last one's logits are wanted."""
    ids = np.random.default_rng(slot).integers(20, 200, rows).astype(np.int32)
    return ThinkerFeed(slot, start, ids, np.empty(0, np.intp), sampled=True)
