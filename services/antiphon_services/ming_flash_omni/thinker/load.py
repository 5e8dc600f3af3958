"""Loads the thinker of a Ming-flash-omni checkpoint."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading
from antiphon.pipelines.generation_config import default_sampling
from antiphon.pipelines.ming_flash_omni import PIPELINE, REQUIRED_FILES, THINKER
from antiphon.pipelines.mrope import centred_positions
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon.values.sampling import Sampling
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.ming_flash_omni.thinker.fields import PARTS
from antiphon_services.ming_flash_omni.thinker.module import (
    FlashThinkerModule,
    FlashThinkerParts,
    FlashTowers,
)
from antiphon_services.ming_flash_omni.thinker.prompt_layout import TEMPLATE
from antiphon_services.ming_flash_omni.thinker.recordings import (
    FRAMES_PER_S,
    Downsampling,
    UnpaddedFrontEnd,
)
from antiphon_services.ming_flash_omni.thinker.text_config import BailingConfig
from antiphon_services.ming_flash_omni.thinker.vision_tower import VisionSizes
from antiphon_services.ming_flash_omni.thinker.whisper_encoder import WhisperSizes
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.engines import check_device, require_torch
from antiphon_services.stage.memory_plan import (
    StageMemory,
    StoredPart,
    decoder_memory,
    planned_limit,
)
from antiphon_services.text.chat import ChatTokenizer
from antiphon_services.text.detokenizer import Vocabulary
from antiphon_services.text.literal import TOKENIZER_FILE, load_tokenizer
from antiphon_services.thinker.intake import PromptIntake
from antiphon_services.thinker.prompt import Ids, PromptFactory
from antiphon_services.thinker.rows import no_positions
from antiphon_services.thinker.thinker_segment import Positions
from antiphon_services.thinker.torch_loading import TorchThinker, load_torch
from antiphon_services.vllm.media import MediaLimits

AUDIO_PLACEHOLDER, IMAGE_PLACEHOLDER, END_OF_TURN = "<audioPatch>", "<imagePatch>", "<|role_end|>"
CONTROL = (
    *("<role>", "</role>", "<audio>", "</audio>", "<image>", "</image>"),
    *(AUDIO_PLACEHOLDER, IMAGE_PLACEHOLDER, END_OF_TURN),
)
VISION = ("vision", "linear_proj")
DEEPSTACK = "vision.deepstack_merger_list."
"""The prefix of tensors that the vendor's code loads, but doesn't use."""
DEFAULT_SAMPLING = Sampling(
    temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=512
)
"""The defaults of the vendor's example."""


@dataclass(frozen=True, slots=True)
class FlashPlaceholders:
    """The placeholder token IDs. Videos are not supported."""

    audio: int
    image: int
    video: int = -1


def memory(model_dir: Path, config: StageConfig) -> StageMemory:
    """Return the memory required for the thinker.

    Raises `FailedPrecondition` if the checkpoint cannot be read.
    """
    text = _parts(model_dir, read_config(model_dir)).text
    weights = Weights(model_dir)
    unseen = () if _media(weights).sees else tuple(f"{each}." for each in VISION)
    stored = StoredPart(weights, skip=(DEEPSTACK, *unseen))
    return decoder_memory(THINKER, config, text, stored, row=text.hidden_size)


def load(
    model_dir: Path,
    config: StageConfig,
    bucketing: Bucketing | None = None,
    *,
    prefill_rows: int | None = None,
) -> LoadedStage:
    """Load the language model, its encoders and the tokenizer, and warm up the stage.

    Images are supported if Pillow is installed. Raises `InvalidArgument` if a setting does not
    apply to this stage, and `FailedPrecondition` if the parts of the checkpoint do not match.
    """
    require_torch(THINKER, config)
    check_device(config)
    content = read_config(model_dir)
    check_fields(model_dir / CONFIG_FILE, content, PARTS)
    parts = _parts(model_dir, content)
    weights = Weights(model_dir)
    stage = load_torch(
        THINKER,
        model_dir,
        config,
        load_intake(model_dir, config),
        TorchThinker(
            FlashThinkerModule,
            parts,
            # No row is kept, and tapping the input lets the last layer skip rows of the prompt.
            tapped_layer=0,
            towers=FlashTowers(),
            routes_media=True,
            prefix="",
            unseen=VISION,
            ignored=tuple(each for each in weights.files if each.startswith(DEEPSTACK)),
        ),
        media=_media(weights),
        bucketing=bucketing,
        prefill_rows=prefill_rows,
    )
    sampling = default_sampling(model_dir, THINKER, DEFAULT_SAMPLING)
    return replace(stage, facts=replace(stage.facts, default_sampling=sampling))


def load_intake(model_dir: Path, config: StageConfig) -> PromptIntake:
    """Load the tokenizer and the front ends for recordings and images.

    Raises `FailedPrecondition` if they cannot be loaded.
    """
    media = _media(Weights(model_dir))
    parts = _parts(model_dir, read_config(model_dir))
    _check_required(model_dir, media)
    tokenizer = load_tokenizer(model_dir, generic=True)
    ids = tokenizer.get_vocab()
    for token in CONTROL:
        if token not in ids:
            raise FailedPrecondition(f"{model_dir}: the tokenizer has no {token}; {REMEDY}")
    if (most := max(ids.values())) >= parts.text.vocab_size:
        raise FailedPrecondition(
            f"{model_dir / CONFIG_FILE}: llm_config.vocab_size is {parts.text.vocab_size}, but the "
            f"tokenizer has the ID {most}; {REMEDY}"
        )
    if (image := parts.text.image_patch_token) != ids[IMAGE_PLACEHOLDER]:
        raise FailedPrecondition(
            f"{model_dir / CONFIG_FILE}: llm_config.image_patch_token is {image}, but the "
            f"tokenizer's {IMAGE_PLACEHOLDER} is {ids[IMAGE_PLACEHOLDER]}; {REMEDY}"
        )
    vision = patches = None
    if media.sees:
        # This import needs Pillow.
        from antiphon_services.ming_flash_omni.thinker.pictures import load_pictures

        vision, patches = load_pictures(model_dir, media.image)
    return PromptIntake(
        PromptFactory(
            chat=ChatTokenizer(tokenizer, TEMPLATE),
            audio=UnpaddedFrontEnd(
                parts.audio.bins,
                Downsampling(parts.downsampling_kernel, parts.downsampling_stride),
                max_audio_s=2 * parts.audio.positions / FRAMES_PER_S,
                known_bytes=config.memory.kept_recording_bytes,
            ),
            special=FlashPlaceholders(ids[AUDIO_PLACEHOLDER], image),
            context_limit=planned_limit(memory(model_dir, config)),
            vision=vision,
            patches=patches,
            rotary=centred_positions,
        ),
        Vocabulary(tokenizer),
        stop_id=ids[END_OF_TURN],
        row_positions=_no_rows,
    )


def _check_required(model_dir: Path, media: MediaLimits) -> None:
    """Raise `FailedPrecondition` if a file is missing that the released repository might lack."""
    needed = REQUIRED_FILES if media.sees else (TOKENIZER_FILE,)
    unneeded = set(REQUIRED_FILES) - set(needed)
    there = {each for each in needed if (model_dir / each).is_file()}
    PIPELINE.files[0].check_required(there | unneeded, f"{model_dir}: ")


def _media(weights: Weights) -> MediaLimits:
    """Return the media that the stage supports, depending on the installed packages."""
    limits = MediaLimits()
    sees = weights.has("vision.") and importlib.util.find_spec("PIL") is not None
    return MediaLimits(limits.audio, limits.image * sees, 0)


def _no_rows(ids: Ids) -> Positions:
    return no_positions()


def _parts(model_dir: Path, content: dict[str, Any]) -> FlashThinkerParts:
    with reading(model_dir / CONFIG_FILE):
        audio = content["audio_config"]
        whisper = audio["whisper_encoder_config"]
        return FlashThinkerParts(
            BailingConfig.from_dict(content["llm_config"]),
            WhisperSizes(
                bins=int(whisper["n_mels"]),
                positions=int(whisper["n_ctx"]),
                width=int(whisper["n_state"]),
                heads=int(whisper["n_head"]),
                layers=int(whisper["n_layer"]),
            ),
            VisionSizes.of(content["vision_config"]),
            projection_layers=int(content["mlp_depth"]),
            downsampling_kernel=int(audio["ds_kernel_size"]),
            downsampling_stride=int(audio["ds_stride"]),
            normalizes_audio=bool(audio["norm_query_embeds"]),
        )
