"""Loads the thinker, which includes the model, its tokenizer, and the recording and image
encoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import isqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.dynin_omni import (
    INPUT,
    OPTIONS,
    TEXT,
    THINKER,
    CheckpointDirs,
)
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import InputChunk, LoadedStage, SegmentSettings, StageFacts
from antiphon.values.chunk import Tensor as Array
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.options import SIZE
from antiphon.values.sampling import Sampling, SamplingRequest
from antiphon.values.segment import FinishReason
from antiphon_services.diffusion.llada import Llada
from antiphon_services.diffusion.masked_engine import MaskedEngine
from antiphon_services.dynin_omni.thinker.fields import PARTS
from antiphon_services.dynin_omni.thinker.task_answers import AnswerMaker
from antiphon_services.dynin_omni.thinker.task_prompts import SOURCE_SIDE, MaskedPromptFactory
from antiphon_services.dynin_omni.thinker.task_segment import SegmentMaker
from antiphon_services.dynin_omni.thinker.task_tokens import TaskTokens
from antiphon_services.emova.unit_tokenizer import (
    INPUT_RATE_HZ,
    MOST_S,
    load_unit_tokenizer,
    unused_tensors,
)
from antiphon_services.emova.unit_tokenizer import PREFIX as SPEECH_PREFIX
from antiphon_services.lm.warm_up import run_segment
from antiphon_services.magvit.drawing_stage import require_pillow
from antiphon_services.magvit.image_sizes import MOST_SIDE_TOKENS, image_weights
from antiphon_services.magvit.image_tokenizer import PREFIX as IMAGE_PREFIX
from antiphon_services.magvit.image_tokenizer import ImageTokenizer, load_image_tokenizer
from antiphon_services.stage.budgets import on_gpu
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import TORCH, context_limit, require_plain_torch
from antiphon_services.stage.memory_plan import StageMemory, StoredPart, check_room
from antiphon_services.stage.precision import BFLOAT16, compute_dtype, dtype_name
from antiphon_services.stage.preparation import Preparations
from antiphon_services.text.detokenizer import Vocabulary
from antiphon_services.text.literal import LiteralTokenizer, load_tokenizer, text_ids, untruncated

DEFAULT_SAMPLING = Sampling(
    temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1024
)
"""The default sampling parameters.

The default temperature and length of a task, which are defined in `task_prompts.py`, take
precedence over these values.
"""

PREFIX = "model.transformer."
SIDES = (MOST_SIDE_TOKENS, SOURCE_SIDE, 16)
"""The side lengths of images, in tokens, that the vendor's settings use."""
CPU_POSITIONS, GPU_POSITIONS = 1 << 11, 1 << 14
"""The maximum number of positions in a call if `prefill_rows` is not set."""
WARM_UP_POSITIONS = 4
# JSON_ESCAPE is the maximum number of JSON bytes for one byte of text. JSON_AROUND is the maximum
# number of bytes for the rest of the document.
JSON_ESCAPE, JSON_AROUND = 6, 64 << 10
DEFAULTS: Mapping[str, Any] = {"embedding_size": None, "n_kv_heads": None, "rms_norm_eps": 1e-5}
"""The defaults of configuration fields that may be missing, as defined by the vendor's class."""


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the model and both encoders.

    Answers need no additional memory because the model does not use a KV cache. Raises
    `FailedPrecondition` if a checkpoint cannot be read.
    """
    dirs = CheckpointDirs.find(model_dir, config.files)
    speech = Weights(dirs.speech)
    unused = tuple(f"{SPEECH_PREFIX}{name}" for name in unused_tensors(speech))
    stored = (
        StoredPart(Weights(model_dir), PREFIX),
        StoredPart(speech, SPEECH_PREFIX, unused),
        StoredPart(image_weights(dirs.image), IMAGE_PREFIX),
    )
    return StageMemory(THINKER, config, stored, dtype_name(THINKER, config, on_gpu=BFLOAT16))


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """Load the stage and warm it up.

    Raises `InvalidArgument` if a setting does not apply to this stage. Raises `FailedPrecondition`
    if the three directories do not match, or if Pillow, which is used to read images, is not
    installed.
    """
    require_plain_torch(THINKER, config)
    require_pillow(THINKER)
    dirs = CheckpointDirs.find(model_dir, config.files)
    path, told = model_dir / CONFIG_FILE, read_config(model_dir)
    check_fields(path, told, PARTS)
    check_room(memory, model_dir, config)
    dtype = compute_dtype(THINKER, config, on_gpu=BFLOAT16)
    device = torch.device(config.device)
    with reading(path):
        limit = context_limit(THINKER, config, int(told["max_sequence_length"]))
        model = load_submodule(
            Llada,
            SimpleNamespace(**{**DEFAULTS, **told}),
            PREFIX,
            Weights(model_dir),
            dtype=dtype,
            device=device,
        )
    tokenizer = load_tokenizer(model_dir, registered="PreTrainedTokenizerFast")
    if text_ids(untruncated(tokenizer), ""):
        raise FailedPrecondition(
            f"{model_dir}: the tokenizer adds token IDs to every text, which this model doesn't "
            f"support; {REMEDY}"
        )
    tokens = TaskTokens.read(path, told, tokenizer, model.wte.num_embeddings)
    text = LiteralTokenizer(tokenizer)
    units = load_unit_tokenizer(Weights(dirs.speech), dtype=dtype, device=device)
    images = load_image_tokenizer(image_weights(dirs.image), dtype=dtype, device=device)
    sides = _sides(path, told, images.scale)
    text_bytes = limit * text.bytes_per_id
    maker = SegmentMaker(
        MaskedPromptFactory(tokens, text, units.units, partial(_look, images), sides),
        AnswerMaker(model, tokens, limit),
        tokens,
        Vocabulary(tokenizer),
        max_text_bytes=JSON_ESCAPE * text_bytes + JSON_AROUND,
        most_samples=MOST_S * INPUT_RATE_HZ,
    )
    engine = MaskedEngine(
        model,
        maker,
        role=THINKER,
        edge=INPUT,
        slots=config.slots,
        most_positions=config.torch.prefill_rows
        or (GPU_POSITIONS if on_gpu(config) else CPU_POSITIONS),
        preparations=Preparations.of(config),
    )
    try:
        _warm_up(engine)
    except BaseException:
        engine.close()
        raise
    size = next(each for each in OPTIONS if each.name == SIZE)
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(*dirs.all),
        engine=TORCH,
        default_sampling=DEFAULT_SAMPLING,
        context_limit=limit,
        input_kinds=("text", "audio", "image"),
        input_sample_rate_hz=INPUT_RATE_HZ,
        max_input_audio_s=float(MOST_S),
        max_input_images=1,
        max_input_text_bytes=text_bytes,
        options=(replace(size, choices=tuple(sides)),),
    )
    return LoadedStage(engine, facts)


def _sides(path: Path, config: Mapping[str, Any], scale: int) -> dict[str, int]:
    """Map image sizes in pixels to the number of tokens per side, with the largest size first.

    Raises `FailedPrecondition` if the number of image tokens in the checkpoint is not a square.
    """
    count = config.get("num_vq_tokens", MOST_SIDE_TOKENS**2)
    most = isqrt(count) if isinstance(count, int) and count > 0 else 0
    if not 0 < most <= MOST_SIDE_TOKENS or most * most != count:
        raise FailedPrecondition(
            f"{path}: num_vq_tokens is {count}, but must be a square number of at most "
            f"{MOST_SIDE_TOKENS**2}; {REMEDY}"
        )
    sides = dict.fromkeys([most, *(each for each in SIDES if each < most)])
    return {f"{side * scale}x{side * scale}": side for side in sides}


def _look(tokenizer: ImageTokenizer, file: Array, side: int, name: str) -> Array:
    """Convert an image file to image tokens, as a uint16 array of shape [side²].

    Raises `InvalidArgument`, with the name of the image, if the file is not a supported image.
    """
    # Imported here so that the stage can report a missing Pillow when it loads.
    from antiphon_services.magvit.square_pixels import square_pixels
    from antiphon_services.thinker.vision import decode_image

    image = decode_image(file, name)
    try:
        return tokenizer.ids(square_pixels(image, side * tokenizer.scale))
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error.message}", field=name) from error


def _warm_up(engine: MaskedEngine) -> None:
    """Warm up the engine with a short answer, so that no request waits for one-time setup."""
    said = Conversation((ConversationMessage("user", (TextPart("Hello"),)),))
    settings = SegmentSettings(
        "",
        DEFAULT_SAMPLING,
        frozenset({TEXT}),
        asked=SamplingRequest(max_tokens=WARM_UP_POSITIONS),
    )
    run_segment(engine, settings, InputChunk(INPUT, 0, to_tensors(said), True, FinishReason.STOP))
