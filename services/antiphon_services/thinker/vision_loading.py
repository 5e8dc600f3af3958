"""Loads a checkpoint's vision front end. This requires Pillow, and OpenCV for videos. Both are
installed together with vLLM.
"""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any, cast

from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from antiphon.errors import FailedPrecondition, NotImplementedYet
from antiphon.pipelines.files import read_config
from antiphon.values.chunk import Tensor
from antiphon_services.thinker.patches import PatchMaker
from antiphon_services.thinker.vision import (
    FRAMES_PER_S,
    FramePace,
    Measure,
    Sizes,
    VisionFrontEnd,
    Visual,
    measure_image,
)


def load_vision(
    model_dir: Path, settings: object, *, max_images: int, max_videos: int
) -> VisionFrontEnd:
    """Return the front end for a checkpoint directory. `settings` are those of the family's
    processor.

    Raises `FailedPrecondition` if a video's time step would not be a whole number of positions,
    because vLLM only supports integer positions and Hugging Face doesn't round.
    """
    processor = _load_processor(model_dir)
    side = processor.patch_size * processor.merge_size
    together = processor.temporal_patch_size
    step = read_config(model_dir)["thinker_config"]["position_id_per_seconds"]
    step *= together / FRAMES_PER_S
    if max_videos and step != int(step):
        raise FailedPrecondition(
            f"config.json: position_id_per_seconds makes {step} positions of {together} frames; "
            "set engine_args.limit_mm_per_prompt with video: 0"
        )
    images = Sizes(side, processor.size["shortest_edge"], processor.size["longest_edge"])
    size: dict[str, int] = cast(Any, settings)._defaults["videos_kwargs"]["size"]
    videos: Measure = _no_video
    if max_videos:
        from antiphon_services.thinker.video import measure_video

        frames = Sizes(side, size["shortest_edge"], size["longest_edge"])
        videos = partial(measure_video, frames, FramePace(together, int(step)))
    return VisionFrontEnd(
        partial(measure_image, images),
        videos,
        max_images,
        max_videos,
    )


def load_patch_maker(model_dir: Path) -> PatchMaker:
    """Return the patch maker for a checkpoint's vision tower."""
    return PatchMaker(_load_processor(model_dir))


def _load_processor(model_dir: Path) -> Any:
    return Qwen2VLImageProcessorPil.from_pretrained(model_dir, local_files_only=True)


def _no_video(file: Tensor, name: str) -> Visual:
    raise NotImplementedYet(f"{name}: videos require OpenCV", field=name)


def blank_picture() -> bytes:
    """Return a small image as a file."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    return file.getvalue()
