"""What a vocoder stage is made of once a family has its `Vocoder`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import reading
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.engine import LoadedStage, StageFacts
from antiphon.sampling import Sampling
from antiphon.transport.device_edge import ToHost
from services.engines import TORCH
from services.lm.graphs import Bucketing, graphs_of
from services.vocoder.engine import VocoderEngine
from services.vocoder.pace import ACCELERATOR, CPU
from services.vocoder.segment import VocoderEdges
from services.vocoder.stream import StreamDecoder, StreamPiece, Vocoder

CODE_DTYPE_ENTRIES = 1 << 16
# A start and one more: the first kernels of a process, and those that a later call adds.
WARM_UP_FRAMES = (2, 1)
# The stage draws nothing: settings without effect.
NO_SAMPLING = Sampling(0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VocoderTerms:
    """What a family knows of its vocoder besides the weights.

    `config_path` is the file that describes it, `most_frames` the longest stream that its
    positions allow, `steady` the frames of a steady chunk.
    """

    edges: VocoderEdges
    config_path: Path
    sample_rate_hz: int
    most_frames: int
    steady: int


def vocoder_stage(
    vocoder: Vocoder,
    terms: VocoderTerms,
    model_dir: Path,
    config: StageConfig,
    bucketing: Bucketing | None = None,
) -> LoadedStage:
    """The stage, ready to run; `bucketing` is what `config.graphs` chooses if None.

    Raises `FailedPrecondition` for a vocoder that cannot be streamed.
    """
    with reading(terms.config_path):
        decoder = StreamDecoder(vocoder)
    if decoder.entries > CODE_DTYPE_ENTRIES:
        raise FailedPrecondition(f"codes travel as uint16; the codebooks have {decoder.entries}")
    _warm_up(decoder)
    context_limit = config.context_limit or terms.most_frames
    to_host = ToHost.of(config)
    engine = VocoderEngine(
        decoder,
        terms.edges,
        context_limit,
        config.slots,
        CPU if decoder.device.type == "cpu" else ACCELERATOR,
        to_host,
        bucketing or graphs_of(config),
        steady=terms.steady,
    )
    log.info(
        "%d slots of %d bytes: %.1f MB of decoder state",
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


def _warm_up(decoder: StreamDecoder) -> None:
    """Decode a little, so that no request pays for firsts."""
    states = decoder.new_states(1)
    states.reset(0)
    for frames in WARM_UP_FRAMES:
        decoder.decode(states, [StreamPiece(0, np.zeros((frames, decoder.groups), np.uint16))])
