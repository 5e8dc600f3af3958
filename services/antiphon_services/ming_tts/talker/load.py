"""Loads the talker of a Ming TTS checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.edges import PIECE
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, reading
from antiphon.pipelines.ming_tts import (
    FRAME_WIDTH,
    INPUT,
    LATENTS,
    SAMPLE_RATE_HZ,
    TALKER,
    MingCheckpoint,
)
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import InputChunk, LoadedStage, StageFacts
from antiphon.values.history import LATENTS as LATENT_HISTORY
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from antiphon_services.lm.memory import module_bytes, say_memory
from antiphon_services.lm.qwen2_config import Qwen2Config
from antiphon_services.lm.spoken_warm_up import WORD, reference_options, text_chunk, words_in
from antiphon_services.lm.warm_up import speak
from antiphon_services.ming_tts.talker.engine import MingTalkerEngine
from antiphon_services.ming_tts.talker.fields import (
    FLASH_AUDIO_PARTS,
    FLASH_LAYER_PARTS,
    FLASH_PARTS,
    PARTS,
)
from antiphon_services.ming_tts.talker.front_end import LatentFrontEnd, PresetVoice
from antiphon_services.ming_tts.talker.module import (
    AUDIO,
    FLASH_UNUSED,
    UNUSED,
    BlockSizes,
    FlashTalkerModule,
    MingTalkerModule,
    TalkerSizes,
)
from antiphon_services.ming_tts.talker.prompt import CONTROL
from antiphon_services.ming_tts.talker.recorded_voices import read_listed_voices
from antiphon_services.ming_tts.talker.reference import ReferenceVoiceEncoder, encoder_part
from antiphon_services.ming_tts.talker.talker import MingTalker
from antiphon_services.ming_tts.talker.voices import VOICES
from antiphon_services.stage.budgets import frame_rows
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import TORCH, require_plain_torch
from antiphon_services.stage.memory_plan import (
    StageMemory,
    StoredPart,
    decoder_memory,
    planned_limit,
)
from antiphon_services.stage.precision import BFLOAT16, compute_dtype
from antiphon_services.stage.preparation import Preparations
from antiphon_services.text.literal import LiteralTokenizer, load_tokenizer

DEFAULT_SAMPLING = Sampling(
    temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=200
)
"""The default sampling settings of the vendor's `speech_generation`. 200 steps correspond to 64
seconds.
"""
MOST_STEPS_OF_ALL = 2000
"""The default of `max_tokens` for Ming-flash-omni, which corresponds to 640 seconds. It is higher
because its texts are split into utterances.
"""

DENSE = "dense"

# The maximum number of rows in addition to the text. They include those of the template and the
# recording.
OTHER_ROWS = 128


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the talker. The recording encoder uses host memory.

    Raises `FailedPrecondition` if the checkpoint cannot be read.
    """
    checkpoint = MingCheckpoint.read(model_dir)
    skip = FLASH_UNUSED if checkpoint.flash else (f"{AUDIO}.", *UNUSED)
    return decoder_memory(
        TALKER,
        config,
        _sizes(checkpoint).language_model,
        StoredPart(Weights(checkpoint.folder), skip=skip),
        encoder_part(checkpoint),
    )


@torch.inference_mode()
def load(model_dir: Path, config: StageConfig, *, text_edge: str = INPUT) -> LoadedStage:
    """Load the talker, its text front end, and the encoder for reference recordings.

    If another stage of the pipeline generates the text, `text_edge` is the name of the edge between
    them. Raises `InvalidArgument` if a setting is not supported, or if the slots do not fit in
    memory. Raises `FailedPrecondition` if the parts of the checkpoint do not match, or if
    onnxruntime is not installed.
    """
    require_plain_torch(TALKER, config)
    checkpoint = MingCheckpoint.read(model_dir)
    sizes = _sizes(checkpoint)
    limit = planned_limit(memory(model_dir, config))
    weights = Weights(checkpoint.folder)
    dtype = compute_dtype(TALKER, config, on_gpu=BFLOAT16)
    device = torch.device(config.device)
    module: MingTalkerModule | FlashTalkerModule
    if checkpoint.flash:
        module = load_submodule(
            FlashTalkerModule, sizes, "", weights, dtype=dtype, device=device, ignored=FLASH_UNUSED
        )
    else:
        module = load_submodule(
            MingTalkerModule,
            sizes,
            "",
            weights,
            dtype=dtype,
            device=device,
            skip=(AUDIO,),
            ignored=UNUSED,
        )
    weight_bytes = module_bytes(module)
    encoder = ReferenceVoiceEncoder(checkpoint)
    front_end = LatentFrontEnd(
        _tokenizer(checkpoint.text_folder),
        VOICES,
        encoder,
        context_limit=limit,
        stored=_stored_voices(checkpoint, encoder) if checkpoint.flash else None,
    )
    model = MingTalker(module, context_limit=limit, slots=config.slots)
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(checkpoint.folder),
        engine=TORCH,
        default_sampling=(
            replace(DEFAULT_SAMPLING, max_tokens=MOST_STEPS_OF_ALL)
            if checkpoint.flash
            else DEFAULT_SAMPLING
        ),
        voices=front_end.voices,
        code_groups=FRAME_WIDTH,
        frame_dtype="float32",
        context_limit=limit,
        input_kinds=("text",),
        max_input_text_bytes=front_end.max_text_bytes,
        goes_on_from=(LATENT_HISTORY,),
    )
    engine = MingTalkerEngine(
        model,
        front_end,
        limit,
        text_edge=text_edge,
        prefill_rows=frame_rows(config),
        preparations=Preparations.of(config),
    )
    _warm_up(engine, config.slots, limit)
    say_memory(TALKER, model.cache.memory, {"weights": weight_bytes}, there=model.cache.bytes)
    return LoadedStage(engine, facts)


def _sizes(checkpoint: MingCheckpoint) -> TalkerSizes:
    """Read the sizes of the talker.

    Raises `FailedPrecondition` if a configuration is not supported.
    """
    path, config = checkpoint.config_file, checkpoint.config
    flow, aggregator = ("flowmodel", "aggregator")
    if checkpoint.flash:
        check_fields(path, config, FLASH_PARTS)
        check_fields(checkpoint.text_folder / CONFIG_FILE, checkpoint.layers(), FLASH_LAYER_PARTS)
        check_fields(checkpoint.audio_folder / CONFIG_FILE, checkpoint.audio(), FLASH_AUDIO_PARTS)
    else:
        flow, aggregator = ("ditar_config", "aggregator_config")
        _check_kind(path, config)
        check_fields(path, config, PARTS)
        with reading(path):
            # If this field is missing, the vendor's flow uses as many previous latents as it
            # generates.
            config[flow]["history_patch_size"]
    with reading(path):
        return TalkerSizes(
            Qwen2Config.from_dict(checkpoint.layers()),
            BlockSizes.of(config[flow]),
            BlockSizes.of(config[aggregator]),
        )


def _stored_voices(
    checkpoint: MingCheckpoint, encoder: ReferenceVoiceEncoder
) -> dict[str, PresetVoice]:
    """Load the voices that the checkpoint lists, by lowercase name."""
    listed = read_listed_voices(checkpoint.voices_file, checkpoint.folder)
    return {
        name: PresetVoice(encoder.voice_of_file(each.samples, each.rate_hz), each.text)
        for name, each in listed.items()
    }


def _check_kind(path: Path, told: Mapping[str, object]) -> None:
    """Raise `FailedPrecondition` for the vendor's larger models.

    They use a different language model and a different prompt.
    """
    kind = told.get("model_type")
    if kind != DENSE:
        raise FailedPrecondition(
            f"{path}: model_type is {kind!r}, but this stage only supports {DENSE!r}; use a "
            "checkpoint of the 0.5B model"
        )


def _tokenizer(model_dir: Path) -> LiteralTokenizer:
    """Load the tokenizer. Raises `FailedPrecondition` if a token of the prompt is missing."""
    tokenizer = LiteralTokenizer(load_tokenizer(model_dir), tags=True)
    if missing := [each for each in CONTROL if each not in tokenizer.control]:
        raise FailedPrecondition(f"{model_dir}: the tokenizer has no token {missing[0]}; {REMEDY}")
    return tokenizer


def _warm_up(engine: MingTalkerEngine, slots: int, limit: int) -> None:
    """Warm up the engine, as described in `antiphon_services.lm.warm_up`.

    Raises `Internal` if the model does not generate any latents.
    """

    def make_input(words: int) -> Iterator[InputChunk]:
        """Yield the input for a text of `words` words."""
        text = WORD * words
        if engine.text_edge == INPUT:
            yield text_chunk(INPUT, text)
        else:
            piece = {PIECE: np.frombuffer(text.encode(), np.uint8)}
            yield InputChunk(engine.text_edge, 0, piece, True, FinishReason.STOP)

    options, words = reference_options(SAMPLE_RATE_HZ), words_in(limit - OTHER_ROWS)
    speak(engine, LATENTS, DEFAULT_SAMPLING, slots, words, make_input, options)
