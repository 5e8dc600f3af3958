"""Loads the talker of a Qwen2.5-Omni checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2_5OmniConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniTalkerForConditionalGeneration,
)

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import CONFIG_FILE, read_config, reading
from antiphon.pipelines.generation_config import default_sampling
from antiphon.pipelines.qwen2_5_omni import (
    CODES,
    PROMPT,
    TALKER,
    TOKENS,
    VOICES_FILE,
    PlaceholderIds,
)
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.torch_files import read_torch_file
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
from antiphon_services.qwen2_5_omni.talker.engine import CodecTalkerEngine
from antiphon_services.qwen2_5_omni.talker.fields import PARTS
from antiphon_services.qwen2_5_omni.talker.ids import TalkerIds
from antiphon_services.qwen2_5_omni.talker.model import CodecTalker
from antiphon_services.qwen2_5_omni.talker.rows import VOICE_ROWS
from antiphon_services.stage.budgets import frame_rows
from antiphon_services.stage.config_fields import check_fields, check_window
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
# `Qwen2_5OmniForConditionalGeneration.generate`.
DEFAULT_SAMPLING = Sampling(
    temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, seed=0, max_tokens=4096
)


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory that the talker needs. It only includes a few rows of the thinker's word
    table.

    Raises `FailedPrecondition` if the checkpoint can't be read.
    """
    text = load_config(Qwen2_5OmniConfig, model_dir, "talker_config").talker_config
    return decoder_memory(TALKER, config, text, StoredPart(Weights(model_dir), PREFIX))


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig, bucketing: Bucketing | None = None) -> LoadedStage:
    """Load the talker, and the rows of the thinker's word table that it needs.

    If `bucketing` is None, `torch.graphs` determines whether CUDA graphs are used. On a CPU, they
    never are. Raises `InvalidArgument` if a setting is not supported or the slots don't fit into
    memory, and `FailedPrecondition` if the parts of the checkpoint don't match or its voices can't
    be read.
    """
    require_torch(TALKER, config)
    check_launch_ahead(config)
    check_device(config)
    whole = load_config(
        Qwen2_5OmniConfig, model_dir, "thinker_config", "talker_config", "token2wav_config"
    )
    file, told = model_dir / CONFIG_FILE, read_config(model_dir)
    check_fields(file, told, PARTS)
    weights = Weights(model_dir)
    limit = planned_limit(memory(model_dir, config))
    check_window(file, PARTS[0].path, whole.talker_config, limit, limited=TALKER)
    voices = _read_voices(model_dir)
    module = load_submodule(
        Qwen2_5OmniTalkerForConditionalGeneration,
        whole.talker_config,
        PREFIX,
        weights,
        dtype=compute_dtype(TALKER, config, on_gpu=BFLOAT16),
        device=torch.device(config.device),
    )
    weight_bytes = module_bytes(module)
    ids = TalkerIds.from_config(told)
    model = CodecTalker(
        module,
        weights.read(WORD_TABLE),
        ids,
        PlaceholderIds.from_config(told),
        voices,
        context_limit=limit,
        slots=config.slots,
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
        voices=model.voices,
        code_groups=1,
        code_entries=ids.code_entries,
        context_limit=limit,
        goes_on_from=(FRAMES,),
    )
    engine = CodecTalkerEngine(
        model, limit, prefill_rows=frame_rows(config), launch_ahead=config.torch.launch_ahead
    )

    def make_input(rows: int) -> Iterator[InputChunk]:
        """Yield a prompt of `rows` IDs without images or videos, and a reply that consists of a
        single row.
        """
        prompt = np.zeros((rows, model.row_width), np.float32)
        yield InputChunk(PROMPT, 0, {"ids": np.zeros(rows, np.int32)})
        yield InputChunk(PROMPT, 0, {"rows": prompt}, segment_finished=True)
        yield InputChunk(TOKENS, 0, {"rows": prompt[:1]}, segment_finished=True)

    speak(engine, CODES, DEFAULT_SAMPLING, config.slots, limit - VOICE_ROWS - 1, make_input)
    say_memory(TALKER, model.cache.memory, {"weights": weight_bytes}, there=model.cache.bytes)
    return LoadedStage(engine, facts)


def _read_voices(model_dir: Path) -> dict[str, int]:
    """Return the first ID of each voice, by name. Raises `FailedPrecondition` if the voices can't
    be read.
    """
    path = model_dir / VOICES_FILE
    told = read_torch_file(path)
    with reading(path):
        voices = {str(name): each["bos_token"] for name, each in told.items()}
        for name, id_ in voices.items():
            if not isinstance(id_, int):
                raise TypeError(f"{name}: bos_token is a {type(id_).__name__}, no int")
    return voices
