"""The vision front end of a checkpoint: needs Pillow and OpenCV, which come with vLLM."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path
from typing import Any, cast

from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import read_config
from services.thinker.video import FRAMES_PER_S, FramePace, measure_video
from services.thinker.vision import Sizes, VisionFrontEnd, measure_image


def load_vision(
    model_dir: Path, settings: object, *, max_images: int, max_videos: int
) -> VisionFrontEnd:
    """The front end of a checkpoint directory; `settings` are those of its family's processor.

    Raises `FailedPrecondition` where a video's time would fall between two positions: vLLM
    counts in whole ones, Hugging Face does not.
    """
    processor: Any = Qwen2VLImageProcessorPil.from_pretrained(model_dir, local_files_only=True)
    side = processor.patch_size * processor.merge_size
    together = processor.temporal_patch_size
    step = read_config(model_dir)["thinker_config"]["position_id_per_seconds"]
    step *= together / FRAMES_PER_S
    if max_videos and step != int(step):
        raise FailedPrecondition(
            f"config.json: position_id_per_seconds makes {step} positions of {together} frames; "
            "give engine_args.limit_mm_per_prompt with video: 0"
        )
    images = Sizes(side, processor.size["shortest_edge"], processor.size["longest_edge"])
    size: dict[str, int] = cast(Any, settings)._defaults["videos_kwargs"]["size"]
    frames = Sizes(side, size["shortest_edge"], size["longest_edge"])
    return VisionFrontEnd(
        partial(measure_image, images),
        partial(measure_video, frames, FramePace(together, int(step))),
        max_images,
        max_videos,
    )


def blank_picture() -> bytes:
    """A file of a small image."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    return file.getvalue()
