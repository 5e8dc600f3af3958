"""Builds a vocoder stage from a family's `Vocoder`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import reading
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.engine import Engine, InputChunk, LoadedStage, SegmentSettings, StageFacts
from antiphon.transport.device_edge import ToHost
from antiphon.values.chunk import Tensor
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.graphs import Bucketing, graphs_of
from antiphon_services.lm.warm_up import complete, run_segment
from antiphon_services.stage.engines import TORCH
from antiphon_services.vocoder.audio_segment import VocoderEdges
from antiphon_services.vocoder.engine import VocoderEngine
from antiphon_services.vocoder.pace import ACCELERATOR, CPU
from antiphon_services.vocoder.stream import StreamDecoder, Vocoder

CODE_DTYPE_ENTRIES = 1 << 16
# The stage doesn't sample, so these settings have no effect.
NO_SAMPLING = Sampling(0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VocoderTerms:
    """The properties of a family's vocoder other than its weights.

    `config_path` is the file that describes the vocoder. `most_frames` is the length of the longest
    stream that its positions allow. `steady` is the number of frames in a steady chunk.
    """

    edges: VocoderEdges
    config_path: Path
    sample_rate_hz: int
    most_frames: int
    steady: int


def frame_limit(config: StageConfig, most: int) -> int:
    """Return the maximum number of frames in a segment. This is the configured limit or, by
    default, the checkpoint's limit `most`.

    The state doesn't grow with the stream, so any value fits into memory.
    """
    limit = config.context_limit
    return (limit if isinstance(limit, int) else 0) or most


def state_bytes(vocoder: Vocoder) -> int:
    """Return the size of a session's state in bytes. The vocoder can be on the meta device.

    Raises `FailedPrecondition` if the vocoder can't be streamed.
    """
    return StreamDecoder(vocoder).state_bytes


def _decoder_of(vocoder: Vocoder, config_path: Path) -> StreamDecoder:
    """Return the decoder. Only an error in its configuration is one of the configuration file."""
    with reading(config_path):
        return StreamDecoder(vocoder)


def vocoder_stage(
    load: Callable[[], Vocoder],
    terms: VocoderTerms,
    model_dir: Path,
    config: StageConfig,
    bucketing: Bucketing | None = None,
) -> LoadedStage:
    """Return the stage, ready to run. By default, `torch.graphs` determines `bucketing`.

    `load` is called once. The weights that it loads are freed before the warm-up, because the
    decoder packs them.

    Raises `FailedPrecondition` if the vocoder can't be streamed.
    """
    decoder = _decoder_of(load(), terms.config_path)
    if decoder.entries > CODE_DTYPE_ENTRIES:
        raise FailedPrecondition(
            f"codes are transmitted as uint16, but the codebooks have {decoder.entries} entries"
        )
    context_limit = frame_limit(config, terms.most_frames)
    to_host = ToHost.of(config)
    pace = CPU if decoder.device.type == "cpu" else ACCELERATOR
    engine = VocoderEngine(
        decoder,
        terms.edges,
        context_limit,
        config.slots,
        pace,
        to_host,
        bucketing or graphs_of(config),
        steady=terms.steady,
    )
    edges, groups = terms.edges, decoder.groups
    _warm_up(engine, edges, groups, config.slots, terms.steady, pace.step, context_limit)
    log.info(
        "decoder state: %d slots of %d bytes: %.1f MB",
        config.slots,
        decoder.state_bytes,
        config.slots * decoder.state_bytes / 1e6,
    )
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(model_dir),
        engine=TORCH,
        default_sampling=NO_SAMPLING,
        sample_rate_hz=terms.sample_rate_hz,
        samples_per_frame=decoder.samples_per_frame,
        code_groups=decoder.groups,
        code_entries=decoder.entries,
        context_limit=context_limit,
    )
    return LoadedStage(engine, facts, to_host)


def warm_up_decoder(
    engine: Engine,
    edges: VocoderEdges,
    codes: Tensor,
    *earlier: InputChunk,
    streams: bool = False,
) -> None:
    """Warm up the engine by decoding a segment, so that no request waits for one-time setup.

    The segment receives the `earlier` chunks, followed by all `codes`. If the decoder `streams`,
    two segments are decoded, one for each delivery mode (whole and streamed). Raises `Internal` if
    the decoder fails.
    """
    frames, outputs = edges.frames, frozenset({edges.audio})
    chunk = InputChunk(frames, 0, {frames: codes}, True, FinishReason.STOP)
    for whole in (frozenset({frames}), frozenset[str]())[: 1 + streams]:
        settings = SegmentSettings("", NO_SAMPLING, outputs, whole_inputs=whole)
        run_segment(engine, settings, *earlier, chunk)


def _warm_up(
    engine: Engine,
    edges: VocoderEdges,
    groups: int,
    slots: int,
    steady: int,
    step: int,
    context_limit: int,
) -> None:
    """Decode chunks of every length up to that of a steady chunk, and then the largest steps.

    This compiles the kernels for these shapes and commits the memory of the largest step, so that
    no request has to wait for either. Raises `Internal` if the decoder fails.
    """
    most_frames = max(1, min(step, context_limit // 2))
    totals = accumulate(range(1, steady + 1))
    lengths_that_fit = sum(total <= context_limit for total in totals)
    loads: tuple[tuple[int, Sequence[int]], ...] = (
        (1, range(1, lengths_that_fit + 1)),
        (1, (most_frames, most_frames)),
        (slots, (max(1, most_frames // slots),) * 2),
    )
    for sessions, lengths in loads:
        keys = [SegmentKey(f"warm-up {index}", 0) for index in range(sessions)]
        for key in keys:
            engine.admit(key, SegmentSettings("", NO_SAMPLING, frozenset({edges.audio})))
        position = 0
        for number, frames in enumerate(lengths, 1):
            reason = FinishReason.STOP if number == len(lengths) else None
            codes = np.zeros((frames, groups), np.uint16)
            chunk = InputChunk(
                edges.frames, position, {edges.frames: codes}, reason is not None, reason
            )
            for key in keys:
                engine.accept(key, chunk)
            position += frames
            while reason is None and engine.awaited_edge(keys[-1]) is None:
                engine.step()
        complete(engine, keys)
