"""Loads the talker of a Qwen3-TTS checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, read_config, reading
from antiphon.pipelines.generation_config import FILE, default_sampling
from antiphon.pipelines.qwen3_tts import (
    CODEC_FOLDER,
    OPTIONS,
    SAMPLE_RATE_HZ,
    TALKER,
    WHOLE_TEXT,
)
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage, StageFacts
from antiphon.values.history import FRAMES
from antiphon.values.options import Option, OptionValue
from antiphon.values.sampling import Sampling
from antiphon_services.lm.graphs import Bucketing, graphs_of
from antiphon_services.lm.kernels import kernels_of
from antiphon_services.lm.memory import module_bytes, say_memory
from antiphon_services.lm.readback import Readback, check_launch_ahead
from antiphon_services.lm.spoken_warm_up import reference_options, speak_text
from antiphon_services.qwen3_tts.talker.engine import CODES, TtsTalkerEngine
from antiphon_services.qwen3_tts.talker.fields import PARTS
from antiphon_services.qwen3_tts.talker.front_end import SpeechFrontEnd
from antiphon_services.qwen3_tts.talker.module import load_talker_module
from antiphon_services.qwen3_tts.talker.prompt import SpeechIds
from antiphon_services.qwen3_tts.talker.reference import ReferenceEncoder, encoder_parts
from antiphon_services.qwen3_tts.talker.talker import TtsTalker
from antiphon_services.qwen3_tts.talker.tts_segment import INPUT
from antiphon_services.qwen3_tts.talker.voice_options import AUTO, CheckpointKind
from antiphon_services.stage.budgets import frame_rows
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import TORCH, check_device, require_torch
from antiphon_services.stage.memory_plan import (
    StageMemory,
    StoredPart,
    decoder_memory,
    planned_limit,
)
from antiphon_services.stage.precision import BFLOAT16, compute_dtype
from antiphon_services.stage.preparation import Preparations
from antiphon_services.text.literal import LiteralTokenizer, load_tokenizer

# The defaults of the vendor's package, which apply if neither the call nor the checkpoint specifies
# a value. The code predictor has the same defaults, but its settings have their own names.
DEFAULT_SAMPLING = Sampling(
    temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, seed=0, max_tokens=2048
)
PREDICTOR = "subtalker"
PREDICTOR_SAMPLING = replace(DEFAULT_SAMPLING, repetition_penalty=1.0)
OTHER_ROWS = 32
"""The number of rows that the warm-up leaves for everything other than its text, such as a
recording."""


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory that the talker needs. This includes the encoders if the checkpoint can
    clone voices.

    Raises `FailedPrecondition` if the checkpoint can't be read.
    """
    told = read_config(model_dir)
    stored = [StoredPart(Weights(model_dir), "talker.")]
    if CheckpointKind.from_config(told).clones:
        stored += encoder_parts(model_dir)
    with reading(model_dir / CONFIG_FILE):
        text = told["talker_config"]
        # The text table, projected to the talker's width.
        tables = int(text["text_vocab_size"]) * int(text["hidden_size"])
        return decoder_memory(TALKER, config, text, *stored, tables=tables)


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig, bucketing: Bucketing | None = None) -> LoadedStage:
    """Load the talker, its text front end and, if the checkpoint can clone voices, the encoders.

    If `bucketing` is None, `torch.graphs` determines it. Raises `InvalidArgument` if a setting is
    not supported or the slots don't fit into memory, and `FailedPrecondition` if the parts of the
    checkpoint don't match.
    """
    require_torch(TALKER, config)
    check_launch_ahead(config)
    check_device(config)
    told = read_config(model_dir)
    check_fields(model_dir / CONFIG_FILE, told, PARTS)
    kind, ids = CheckpointKind.from_config(told), SpeechIds.from_config(told)
    dtype = compute_dtype(TALKER, config, on_gpu=BFLOAT16)
    limit = planned_limit(memory(model_dir, config))
    module = load_talker_module(model_dir, dtype, config.device)
    weight_bytes = module_bytes(module)
    tokenizer = LiteralTokenizer(load_tokenizer(model_dir), tags=False)
    encoder = ReferenceEncoder(model_dir, dtype, config.device) if kind.clones else None
    front_end = SpeechFrontEnd(tokenizer, ids, encoder, context_limit=limit)
    code_entries = _code_entries(model_dir)
    model = TtsTalker(
        module,
        ids,
        _predictor_sampling(model_dir),
        code_entries=code_entries,
        context_limit=limit,
        slots=config.slots,
        readback=Readback.of(config),
        bucketing=bucketing or graphs_of(config),
        kernels=kernels_of(config),
    )
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(model_dir),
        engine=TORCH,
        default_sampling=default_sampling(model_dir, "", DEFAULT_SAMPLING),
        voices=tuple(ids.voices) if kind.has_voices else (),
        code_groups=model.groups,
        code_entries=code_entries,
        context_limit=limit,
        input_kinds=("text",),
        max_input_text_bytes=front_end.max_text_bytes,
        options=tuple(_described(kind, ids)),
        goes_on_from=(FRAMES,),
    )
    engine = TtsTalkerEngine(
        model,
        front_end,
        kind,
        limit,
        prefill_rows=frame_rows(config),
        launch_ahead=config.torch.launch_ahead,
        preparations=Preparations.of(config),
    )
    spoken: dict[str, OptionValue] = {"text_mode": WHOLE_TEXT}
    if kind.clones:
        spoken |= reference_options(SAMPLE_RATE_HZ)
    speak_text(engine, INPUT, CODES, DEFAULT_SAMPLING, config.slots, limit - OTHER_ROWS, spoken)
    say_memory(TALKER, model.cache.memory, {"weights": weight_bytes}, there=model.cache.bytes)
    return LoadedStage(engine, facts)


def _described(kind: CheckpointKind, ids: SpeechIds) -> Iterator[Option]:
    """Yield the options, including the choices that this checkpoint offers."""
    for option in OPTIONS:
        if option.name == "language":
            option = replace(option, choices=(AUTO, *ids.told_languages))
        if option.name not in kind.options:
            option = replace(
                option,
                description=(
                    f"{option.description} Not supported by this checkpoint ({kind.name})."
                ),
            )
        yield option


def _predictor_sampling(model_dir: Path) -> Sampling:
    """Return the code predictor's sampling settings. Raises `FailedPrecondition` if they are
    invalid.
    """
    sampling = default_sampling(model_dir, PREDICTOR, PREDICTOR_SAMPLING)
    if sampling.greedy:
        raise FailedPrecondition(
            f"{model_dir / FILE}: {PREDICTOR}_*: the code predictor can only use greedy "
            "decoding if the first codes do; set the temperature to 0 instead"
        )
    return sampling


def _code_entries(model_dir: Path) -> int:
    """Return the size of the codec's codebooks. Raises `FailedPrecondition` if it can't be
    determined.
    """
    folder = model_dir / CODEC_FOLDER
    with reading(folder / CONFIG_FILE):
        return int(read_config(folder)["decoder_config"]["codebook_size"])
