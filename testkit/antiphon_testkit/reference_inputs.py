"""Prepares a conversation for Hugging Face's `generate`, in the same way as a family's
processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch.nn.functional import pad
from transformers import AutoImageProcessor, AutoTokenizer, WhisperFeatureExtractor

from antiphon.values.conversation import Conversation, recordings_alone
from antiphon_testkit.conversations import Pixels, chat_messages, chat_tools

FRAMES_PER_S = 2.0
"""The frame rate of videos, as passed to the processor."""

# transformers doesn't have type annotations for `from_pretrained`.
_IMAGES: Any = AutoImageProcessor


class ReferenceInputs:
    """A checkpoint's tokenizer and feature extractor, and the expansion of placeholders by its
    processor.

    The processor can't be constructed without torchvision, so its method for expanding placeholders
    is called on a stand-in object with the processor's default settings. Its image processor is
    available without torchvision, but videos need it.
    """

    def __init__(
        self, directory: Path, processor: Any, defaults: Mapping[str, Any], merge_size: int
    ) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self._extractor = WhisperFeatureExtractor.from_pretrained(directory)
        self._processor, self._defaults = processor, defaults
        self._merge_size, self._directory = merge_size, directory

    def features(
        self, conversation: Conversation, images: Sequence[Pixels], videos: Sequence[Pixels] = ()
    ) -> dict[str, torch.Tensor]:
        """Return the features of recordings, images and videos.

        For recordings, these are `input_features` [recordings, mel bins, frames] and a mask. For
        images (uint8 [height, width, 3]), these are `pixel_values` [patches, values] and
        `image_grid_thw` [images, 3]. Videos (uint8 [frames, height, width, 3]) have the
        corresponding fields and `video_second_per_grid` [videos].
        """
        features: dict[str, torch.Tensor] = {}
        if conversation.recordings:
            # Use the processor's window instead of the extractor's.
            given = self._defaults["audio_kwargs"].items()
            settings = {name: value for name, value in given if name != "n_window"}
            together = [list(conversation.recordings)]
            if recordings_alone(conversation.messages):
                together = [[each] for each in conversation.recordings]
            heard = [self._extractor(each, return_tensors="pt", **settings) for each in together]
            features["input_features"] = _padded([each["input_features"] for each in heard])
            features["feature_attention_mask"] = _padded([each["attention_mask"] for each in heard])
        if images:
            from PIL import Image

            processor: Any = _IMAGES.from_pretrained(self._directory)
            pictures = [Image.fromarray(each) for each in images]
            features |= processor(images=pictures, return_tensors="pt")
        return features | self._video_features(videos)

    def _video_features(self, videos: Sequence[Pixels]) -> dict[str, torch.Tensor]:
        if not videos:
            return {}
        from transformers import AutoVideoProcessor

        processor: Any = cast(Any, AutoVideoProcessor).from_pretrained(self._directory)
        seen = dict(
            processor(
                videos=[torch.from_numpy(each).permute(0, 3, 1, 2) for each in videos],
                size=self._defaults["videos_kwargs"]["size"],
                cap_pixels_per_frame=False,
                return_tensors="pt",
            )
        )
        seconds = processor.temporal_patch_size / FRAMES_PER_S
        return seen | {"video_second_per_grid": torch.full((len(videos),), seconds)}

    def tokens(
        self, conversation: Conversation, features: Mapping[str, Any], audio_positions: Any
    ) -> dict[str, torch.Tensor]:
        """Return the IDs and the mask of the prompt. It contains one placeholder for each position
        of a recording, image or video.

        `audio_positions` contains the number of positions for each recording.
        """
        text = self.tokenizer.apply_chat_template(
            chat_messages(conversation),
            tools=chat_tools(conversation),
            tokenize=False,
            add_generation_prompt=True,
        )
        merge = SimpleNamespace(merge_size=self._merge_size)
        stand_in = SimpleNamespace(
            image_processor=merge,
            video_processor=merge,
            audio_token=self.tokenizer.audio_token,
            image_token=self.tokenizer.image_token,
            video_token=self.tokenizer.video_token,
        )
        video = self._defaults["videos_kwargs"]
        expanded = self._processor.replace_multimodal_special_tokens(
            stand_in,
            [text],
            iter(audio_positions),
            iter(features.get("image_grid_thw", ())),
            iter(features.get("video_grid_thw", ())),
            video_second_per_grid=iter(()),
            use_audio_in_video=video["use_audio_in_video"],
            position_id_per_seconds=video["position_id_per_seconds"],
            seconds_per_chunk=video["seconds_per_chunk"],
        )
        return dict(self.tokenizer(expanded, padding=False, return_tensors="pt"))


def _padded(batches: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the rows of all batches. Their last axes are padded with zeros to the longest one."""
    longest = max(each.shape[-1] for each in batches)
    filled = [pad(each, (0, longest - each.shape[-1])) for each in batches]
    return torch.cat(filled)
