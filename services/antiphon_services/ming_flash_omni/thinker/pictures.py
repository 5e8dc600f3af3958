"""Prepares images in the same way as the vendor's code. This requires Pillow."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from antiphon.errors import NotImplementedYet
from antiphon.pipelines.files import read_json, reading
from antiphon.values.chunk import Tensor
from antiphon_services.thinker.loading import PREPROCESSOR_FILE
from antiphon_services.thinker.patches import PatchMaker
from antiphon_services.thinker.vision import Sizes, VisionFrontEnd, Visual, measure_image


def load_pictures(model_dir: Path, most: int) -> tuple[VisionFrontEnd, PatchMaker]:
    """Return the front end for up to `most` images, and what splits their pixels into patches.

    Raises `FailedPrecondition` if `preprocessor_config.json` can't be read.
    """
    path = model_dir / PREPROCESSOR_FILE
    settings = read_json(path)
    with reading(path):
        least, largest = int(settings["min_pixels"]), int(settings["max_pixels"])
        made = Qwen2VLImageProcessorPil(
            size={"shortest_edge": least, "longest_edge": largest},
            patch_size=int(settings["patch_size"]),
            temporal_patch_size=int(settings["temporal_patch_size"]),
            merge_size=int(settings["merge_size"]),
            image_mean=list(settings["image_mean"]),
            image_std=list(settings["image_std"]),
        )
        side = int(settings["patch_size"]) * int(settings["merge_size"])
    sizes = Sizes(side, least, largest)
    return VisionFrontEnd(partial(measure_image, sizes), _no_video, most, 0), PatchMaker(made)


def _no_video(file: Tensor, name: str) -> Visual:
    raise NotImplementedYet(f"{name}: this model's videos are not supported", field=name)
