"""Loads the talker of a Qwen3-Omni checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import CONFIG_FILE, read_config
from antiphon.pipelines.generation_config import default_sampling
from antiphon.pipelines.qwen3_omni import TALKER, SpecialIds, window_positions
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import InputChunk, LoadedStage, StageFacts
from antiphon.transport.device_edge import ToDevice
from antiphon.values.history import FRAMES
from antiphon.values.sampling import Sampling
from antiphon_services.lm.graphs import Bucketing, graphs_of
from antiphon_services.lm.kernels import kernels_of
from antiphon_services.lm.memory import module_bytes, say_memory
from antiphon_services.lm.readback import Readback, check_launch_ahead
from antiphon_services.lm.warm_up import speak
from antiphon_services.qwen3_omni.config import OmniConfig
from antiphon_services.qwen3_omni.talker.engine import CODES, TalkerEngine
from antiphon_services.qwen3_omni.talker.fields import PARTS
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_services.qwen3_omni.talker.module import OmniTalkerModule
from antiphon_services.qwen3_omni.talker.prompt import ANSWER_ROWS, PROMPT, TOKENS
from antiphon_services.stage.budgets import frame_rows
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import TORCH, check_device, require_torch
from antiphon_services.stage.hugging_face import load_config
from antiphon_services.stage.memory_plan import (
    StageMemory,
    StoredPart,
    decoder_memory,
    planned_limit,
)
from antiphon_services.stage.precision import BFLOAT16, compute_dtype

PREFIX = "talker."
WORD_TABLE = "thinker.model.embed_tokens.weight"

# The defaults of the `talker_*` keyword arguments of
# `Qwen3OmniMoeForConditionalGeneration.generate`.
DEFAULT_SAMPLING = Sampling(
    temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, seed=0, max_tokens=4096
)


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory that the talker needs. Raises `FailedPrecondition` if the checkpoint can't
    be read.
    """
    whole = load_config(OmniConfig, model_dir, "thinker_config", "talker_config")
    text = whole.talker_config.text_config
    return decoder_memory(
        TALKER,
        config,
        text,
        StoredPart(Weights(model_dir), PREFIX),
        # The word table, projected to the talker's width.
        tables=whole.thinker_config.text_config.vocab_size * text.hidden_size,
    )


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig, bucketing: Bucketing | None = None) -> LoadedStage:
    """Load the talker and the thinker's word table. No other weights are read.

    If `bucketing` is None, `torch.graphs` determines whether CUDA graphs are used. On a CPU, they
    never are. Raises `InvalidArgument` if a setting is not supported or the slots don't fit into
    memory, and `FailedPrecondition` if the parts of the checkpoint don't match.
    """
    require_torch(TALKER, config)
    check_launch_ahead(config)
    check_device(config)
    fields = read_config(model_dir)
    check_fields(model_dir / CONFIG_FILE, fields, PARTS)
    whole = load_config(OmniConfig, model_dir, "thinker_config", "talker_config", "code2wav_config")
    weights = Weights(model_dir)
    limit = planned_limit(memory(model_dir, config))
    module = load_submodule(
        OmniTalkerModule,
        whole.talker_config,
        PREFIX,
        weights,
        dtype=compute_dtype(TALKER, config, on_gpu=BFLOAT16),
        device=torch.device(config.device),
    )
    weight_bytes = module_bytes(module)
    code_entries = int(whole.code2wav_config.codebook_size)
    special = SpecialIds.from_config(fields)
    ears = whole.thinker_config.audio_config
    model = Talker(
        module,
        weights.read(WORD_TABLE),
        special,
        code_entries=code_entries,
        context_limit=limit,
        slots=config.slots,
        window=window_positions(ears.n_window, ears.n_window_infer),
        to_device=ToDevice.of(config),
        readback=Readback.of(config),
        bucketing=bucketing or graphs_of(config),
        kernels=kernels_of(config),
    )
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(model_dir),
        engine=TORCH,
        default_sampling=default_sampling(model_dir, TALKER, DEFAULT_SAMPLING),
        voices=model.rows.voices,
        code_groups=model.groups,
        code_entries=code_entries,
        context_limit=limit,
        goes_on_from=(FRAMES,),
    )
    engine = TalkerEngine(
        model, limit, prefill_rows=frame_rows(config), launch_ahead=config.torch.launch_ahead
    )
    room = limit - ANSWER_ROWS
    speak(engine, CODES, DEFAULT_SAMPLING, config.slots, room, partial(_warm_up_input, special))
    say_memory(TALKER, model.cache.memory, {"weights": weight_bytes}, there=model.cache.bytes)
    return LoadedStage(engine, facts)


def _warm_up_input(special: SpecialIds, rows: int) -> Iterator[InputChunk]:
    """Yield a user turn of `rows` IDs and a reply that consists of a single token."""
    user = [special.im_start, special.user] + [special.assistant] * max(rows - 2, 0)
    header = [special.im_start, special.assistant, special.assistant]
    ids = np.array(user[:rows] + header, np.int32)
    yield InputChunk(PROMPT, 0, {"ids": ids}, segment_finished=True)
    yield InputChunk(TOKENS, 0, {"ids": ids[:1]}, segment_finished=True)
