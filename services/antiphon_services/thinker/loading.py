"""Loads the components that all families' thinkers have in common."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

from transformers import WhisperFeatureExtractor

from antiphon.pipelines.files import read_json, reading
from antiphon.pipelines.generation_config import default_sampling
from antiphon.runtime.checkpoint.fingerprint import fingerprint
from antiphon.runtime.engine import StageFacts
from antiphon.values.history import IDS
from antiphon.values.sampling import Sampling
from antiphon_services.stage.engines import VLLM
from antiphon_services.thinker.prompt import PromptFactory
from antiphon_services.vllm.media import MediaLimits

PREPROCESSOR_FILE = "preprocessor_config.json"
VISION_TOWER = "thinker.visual."
VLLM_READS_IT = "set the stage's engine to vllm, which supports it"
"""The suggested fix if a quantized thinker is configured to use the torch engine."""
DEFAULT_SAMPLING = Sampling(
    temperature=0.0, top_k=50, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1024
)
"""The default settings of Hugging Face's `generate`: greedy decoding and 1024 tokens."""


def load_extractor(model_dir: Path) -> WhisperFeatureExtractor:
    """Return the audio feature extractor. Raises `FailedPrecondition` if it cannot be read."""
    path = model_dir / PREPROCESSOR_FILE
    settings = read_json(path)
    with reading(path):
        made: Any = WhisperFeatureExtractor.from_dict(settings)
        return cast(WhisperFeatureExtractor, made)


def with_media(
    model_dir: Path,
    prompts: PromptFactory,
    settings: object,
    media: MediaLimits,
    *,
    cuts: bool = False,
) -> PromptFactory:
    """Return a copy of the factory with these limits. If media are allowed, it includes the
    checkpoint's vision front end, unless it already has one.

    `settings` are those of the family's processor in transformers. If `cuts` is true, the factory
    splits pixels into patches, for use with engines that don't decode images themselves.
    """
    prompts = dataclasses.replace(prompts, max_recordings=media.audio)
    if not media.sees or prompts.vision is not None:
        return prompts
    # Pillow and OpenCV are installed together with vLLM, and are only needed here.
    from antiphon_services.thinker.vision_loading import load_patch_maker, load_vision

    vision = load_vision(model_dir, settings, max_images=media.image, max_videos=media.video)
    patches = load_patch_maker(model_dir) if cuts else None
    return dataclasses.replace(prompts, vision=vision, patches=patches)


def first_picture(media: MediaLimits) -> bytes:
    """Return the image used for warm-up, or an empty value if the stage has no vision support."""
    if not media.image:
        return b""
    from antiphon_services.thinker.vision_loading import blank_picture

    return blank_picture()


def thinker_facts(
    role: str, model_dir: Path, prompts: PromptFactory, engine: str, media: MediaLimits
) -> StageFacts:
    """Return the thinker's part of the stage's `Describe` response."""
    kinds = ["text", *(name for name, most in dataclasses.asdict(media).items() if most)]
    if prompts.chat.takes_tools:
        kinds.append("tools")
    return StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint=fingerprint(model_dir),
        engine=engine,
        default_sampling=default_sampling(model_dir, role, DEFAULT_SAMPLING),
        context_limit=prompts.context_limit,
        input_kinds=tuple(kinds),
        input_sample_rate_hz=prompts.audio.sample_rate_hz,
        max_input_audio_s=prompts.audio.max_audio_s,
        max_input_images=media.image,
        max_input_videos=media.video,
        max_input_text_bytes=prompts.max_text_bytes,
        constrains_text=engine == VLLM,
        keeps_recordings=bool(media.audio),
        goes_on_from=(IDS,),
    )
